"""docker-compose.yml and the Dockerfile, read as text: what no container is needed for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "--metrics-listen=0.0.0.0:9404" in service["command"]
    assert "healthcheck" not in service, "the image has one"


def test_the_image() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER barnabas$", text, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", text, re.MULTILINE)
    assert "/dev/tcp/127.0.0.1/9404" in text
    assert '"--metrics-listen", "0.0.0.0:9404"]' in text
