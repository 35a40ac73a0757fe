"""Pages in a real browser, Chromium without a window. Tests skip where it is not installed."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SECONDS_MAX = 120
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--allow-file-access-from-files",
    "--virtual-time-budget=10000",
    "--window-size=1600,1200",
)
# A window cannot be as narrow as a phone's, a frame can.
_FRAME = """<!doctype html><iframe id="frame" style="width:{width}px;height:800px;border:0" src="{page}"></iframe><pre id="seen"></pre><script>
document.getElementById("frame").onload = event => {{
  const page = event.target.contentDocument;
  document.getElementById("seen").textContent = JSON.stringify(({expression})(page));
}};
</script>"""


def seen_in_browser(page: Path, width: int, expression: str) -> Any:
    """What a function of JavaScript returns for the document of a page that is `width` pixels wide."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("Chromium is not installed")
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(_FRAME.format(width=width, page=page.name, expression=expression), encoding="utf-8")
    profile = page.with_name(f"profile-{width}")
    ran = subprocess.run(
        [browser, *_FLAGS, f"--user-data-dir={profile}", "--dump-dom", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    found = re.search(r'<pre id="seen">(.+?)</pre>', ran.stdout, re.DOTALL)
    assert found is not None, ran.stdout[-2000:] + ran.stderr[-2000:]
    return json.loads(html.unescape(found.group(1)))
