"""One table of faults: Python, YAML, JSON and HTTP write the same fault with the same effect, and refuse the same mistakes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from barnabas.testing import Broker, Cluster, Fault, KitError
from barnabas.testing.faults.document import ACTIONS, DOCUMENT_BYTES_MAX, FAULTS_MAX, wanted, written
from tests.support.http import call
from tests.support.oracle.wire import Wire
from tests.support.snippets import snippets

PAGE = Path(__file__).parents[2] / "docs" / "testing" / "faults.md"
SILENT_S = 0.3  # that no answer comes

# name → (the document's action, the same in Python, what a Produce meets: its error or what happens instead, records written)
TABLE: dict[str, tuple[dict[str, Any], Callable[[Fault], Fault], tuple[object, int]]] = {
    "error": ({"error": "NOT_LEADER_OR_FOLLOWER"}, lambda fault: fault.error("NOT_LEADER_OR_FOLLOWER"), (6, 0)),
    "error after": (
        {"error": "REQUEST_TIMED_OUT", "after": "apply"},
        lambda fault: fault.error("REQUEST_TIMED_OUT", after="apply"),
        (7, 1),
    ),
    "disconnect": ({"disconnect": True}, lambda fault: fault.disconnect(), ("closed", 0)),
    "disconnect applied": ({"disconnect": "applied"}, lambda fault: fault.disconnect(at="applied"), ("closed", 1)),
    "disconnect replicated": (
        {"disconnect": "replicated"},
        lambda fault: fault.disconnect(at="replicated"),
        ("closed", 1),
    ),
    "disconnect half_answered": (
        {"disconnect": "half_answered"},
        lambda fault: fault.disconnect(at="half_answered"),
        ("closed", 1),
    ),
    "delay": ({"delay": 0.01, "jitter": 0.01}, lambda fault: fault.delay(0.01, jitter=0.01), (0, 1)),
    "hold": ({"hold": True}, lambda fault: fault.hold(), ("silent", 0)),
    "drop": ({"drop": True}, lambda fault: fault.drop(), ("silent", 0)),
    "duplicate": ({"duplicate": True}, lambda fault: fault.duplicate(), (0, 2)),
    "late": ({"late": "Produce"}, lambda fault: fault.late(until="Produce"), ("closed", 0)),
    "throttle": ({"throttle": 10}, lambda fault: fault.throttle(10), (0, 1)),
}
SELECTION = {"client": "app-*", "topic": "ord*", "partition": 0, "broker": 1, "nth": 2, "times": 3, "strict": False}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 1}, admin_port=0) as kafka:
        yield kafka


@pytest.fixture
def kafka(broker: Broker) -> Iterator[Broker]:
    yield broker
    broker.faults.clear()


def test_the_examples_of_the_page(kafka: Broker, tmp_path: Path) -> None:
    """The file of docs/testing/faults.md is loaded, and the request of curl is answered as it is printed."""
    (text,) = snippets(PAGE, "yaml")
    (tmp_path / "faults.yaml").write_text(text)
    assert [each.rule.api for each in kafka.faults.load(tmp_path / "faults.yaml")] == ["EndTxn", "Produce"]
    (shell,) = snippets(PAGE, "sh")
    request, answer = shell.splitlines()
    command = shlex.split(request)
    status, told = call("POST", command[3].replace("$LAB", kafka.admin_url), command[2].encode())
    assert (command[:2], status) == (["curl", "-d"], 201)
    assert {**told, "id": 1} == json.loads(answer)


def by_python(kafka: Broker, document: dict[str, Any], name: str, folder: Path) -> Fault:
    selection = {key: value for key, value in document.items() if key in SELECTION}
    return TABLE[name][1](kafka.faults.on(document["api"], **selection))


def by_yaml(kafka: Broker, document: dict[str, Any], name: str, folder: Path) -> Fault:
    path = folder / "faults.yaml"
    path.write_text(yaml.safe_dump({"faults": [document]}))
    return kafka.faults.load(path)[0]


def by_json(kafka: Broker, document: dict[str, Any], name: str, folder: Path) -> Fault:
    path = folder / "faults.json"
    path.write_text(json.dumps(document))
    return kafka.faults.load(str(path))[0]


def by_http(kafka: Broker, document: dict[str, Any], name: str, folder: Path) -> Fault:
    status, told = call("POST", f"{kafka.admin_url}/v1/faults", document)
    assert status == 201, told
    fault = kafka.faults.get(told["id"])
    assert fault is not None
    assert {key: value for key, value in told.items() if key not in ("id", "hits", "used_up")} == written(fault.rule)
    return fault


DOORS = {"python": by_python, "yaml": by_yaml, "json": by_json, "http": by_http}


def test_every_action_has_a_row() -> None:
    assert {name.split()[0] for name in TABLE} == set(ACTIONS)


def met(kafka: Cluster, *, silent: bool) -> tuple[object, int]:
    """What one Produce meets, and how many records it writes.

    Args:
        silent: whether no answer is expected.
    """

    def end() -> int:
        with Wire(kafka.bootstrap_servers, client_id="observer") as peer:
            return int(peer.fetch("orders", 0, 0).high_watermark)

    before = end()
    answer: object
    with Wire(kafka.bootstrap_servers, client_id="app-1", timeout_s=SILENT_S if silent else 60) as peer:
        try:
            answer = int(peer.produce(9, "orders", 0, [b"record"]).error_code)
        except ConnectionResetError:
            answer = "closed"
        except TimeoutError:
            answer = "silent"
    return answer, end() - before


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", TABLE)
def test_each_action_through_each_door(kafka: Broker, tmp_path: Path, door: str, name: str) -> None:
    action, _, expected = TABLE[name]
    DOORS[door](kafka, {"api": "Produce", **action}, name, tmp_path)
    assert met(kafka, silent=expected[0] == "silent") == expected


@pytest.mark.parametrize("name", TABLE)
def test_all_doors_make_the_same_rule(kafka: Broker, tmp_path: Path, name: str) -> None:
    document = {"api": "Produce", **SELECTION, "probability": 0.5, **TABLE[name][0]}
    found = []
    for door, make in DOORS.items():
        kafka.faults.clear()
        given = {**document, "probability": 0.5}
        if door == "python":
            del given["probability"]
            fault = TABLE[name][1](
                kafka.faults.on("Produce", **{key: document[key] for key in (*SELECTION, "probability")})
            )
        else:
            fault = make(kafka, given, name, tmp_path)
        found.append(fault.rule)
    assert found == [found[0]] * len(DOORS)
    assert found[0].probability == 0.5


@pytest.mark.parametrize("name", TABLE)
def test_a_fault_writes_the_document_that_made_it(name: str) -> None:
    [checked] = wanted({"api": "Produce", **SELECTION, **TABLE[name][0]})
    told = written(checked)
    assert wanted(told) == [checked]
    assert wanted({"api": "Produce", **TABLE[name][0], "times": None})[0].times is None
    assert replace(checked, action="drop") != checked or name == "drop"


# -- files


def test_a_file_in_the_words_of_a_user(kafka: Broker, tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        """
# what the payment service must survive
faults:
  - api: Produce
    topic: orders
    times: null
    error: NOT_ENOUGH_REPLICAS
  - {api: EndTxn, txn: "pay-*", disconnect: applied, strict: no}
"""
    )
    first, second = kafka.faults.load(path)
    assert met(kafka, silent=False) == met(kafka, silent=False) == (19, 0)
    assert first.hits == 2
    assert (second.rule.txn, second.rule.at, second.rule.strict) == ("pay-*", "applied", False)
    kafka.faults.verify()


def test_no_fault_of_a_wrong_file_is_installed(kafka: Broker, tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text("- {api: Produce, drop: true}\n- {api: Produce, drop: true, broker: 7}\n")
    with pytest.raises(KitError, match=r"faults.yaml: broker 7 is unknown; this cluster has broker 1"):
        kafka.faults.load(path)
    assert kafka.faults.all() == []
    path.write_text("- {api: Produce, drop: true}\n- {api: Produce, dropp: true}\n")
    with pytest.raises(KitError, match=r"faults.yaml: fault 2: unknown key 'dropp'; did you mean 'drop'"):
        kafka.faults.load(path)
    assert kafka.faults.all() == []


def test_the_table_is_bounded(kafka: Broker, tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text(json.dumps([{"api": "Produce", "drop": True}] * (FAULTS_MAX + 1)))
    with pytest.raises(KitError, match=f"{FAULTS_MAX + 1} faults: {FAULTS_MAX} are possible"):
        kafka.faults.load(path)
    path.write_text(json.dumps([{"api": "Produce", "drop": True}] * FAULTS_MAX))
    kafka.faults.load(path)
    with pytest.raises(KitError, match=f"{FAULTS_MAX} faults are installed: remove some first"):
        kafka.faults.on("Produce").drop()


# -- mistakes

MISTAKES: list[tuple[object, str]] = [
    ({"api": "EndTx", "drop": True}, "unknown API 'EndTx'; did you mean 'EndTxn'"),
    ({"api": "EndTxn", "topic": "orders", "drop": True}, "EndTxn requests name no topic"),
    ({"api": "EndTxn"}, "the fault on 'EndTxn' has no action: add one of error, disconnect,"),
    ({"api": "EndTxn", "drop": True, "hold": True}, "the actions hold and drop: write one of them"),
    ({"drop": True}, "api is missing"),
    ({"api": ["EndTxn"], "drop": True}, "write a name"),
    ({"api": None, "drop": True}, "write a name"),
    ({"api": "EndTxn", "error": "COORDINATOR_NOT_AVAILABEL"}, "did you mean 'COORDINATOR_NOT_AVAILABLE'"),
    ({"api": "EndTxn", "error": 7}, "error=7: write a name"),
    ({"api": "EndTxn", "error": True}, "error has no value: write one, for example error: NOT_LEADER"),
    ({"api": "EndTxn", "error": "REQUEST_TIMED_OUT", "after": "aply"}, "after='aply': \"apply\" or nothing"),
    ({"api": "EndTxn", "drop": True, "after": "apply"}, "after is an option of error, and the action is drop"),
    ({"api": "EndTxn", "drop": 1}, "drop=1: drop takes no value"),
    ({"api": "EndTxn", "disconnect": "later"}, "unknown place of a disconnect 'later'"),
    ({"api": "EndTxn", "delay": "soon"}, "delay='soon': write a number"),
    ({"api": "EndTxn", "delay": -1}, "0 to 3600 seconds"),
    ({"api": "EndTxn", "delay": 1, "jitter": [1]}, r"jitter=\[1\]: write a number"),
    ({"api": "EndTxn", "late": "EndTx"}, "unknown API 'EndTx'"),
    ({"api": "EndTxn", "throttle": 1.5}, "throttle=1.5: write a whole number"),
    ({"api": "*", "throttle": 15}, "have no throttle_time_ms"),
    ({"api": "EndTxn", "rewrite": "lambda: 0"}, "only Python in mode 'thread' has it"),
    ({"api": "EndTxn", "drop": True, "txn": 7}, "txn=7: write a pattern as text"),
    ({"api": "EndTxn", "drop": True, "txn": "x" * 1001}, "txn has 1001 characters: 1000 are possible"),
    ({"api": "Produce", "drop": True, "partition": -1}, "partitions count from 0"),
    ({"api": "Produce", "drop": True, "nth": 0}, "both count from 1"),
    ({"api": "Produce", "drop": True, "nth": 10**400}, "both count from 1"),
    ({"api": "Produce", "drop": True, "times": "all"}, "times='all': write a whole number"),
    ({"api": "Produce", "drop": True, "probability": 0}, "above 0, at most 1"),
    ({"api": "Produce", "drop": True, "probability": True}, "write a number"),
    ({"api": "Produce", "drop": True, "strict": "no"}, "strict='no': write true or false"),
    ({"api": "Produce", "drop": True, "broker": "1"}, "broker='1': write a whole number"),
    ({"api": "Produce", "drop": True, "clint": "x"}, "unknown key 'clint'; did you mean 'client'"),
    ({"api": "Produce", "drop": True, "stream": "x"}, "unknown key 'stream'"),
    ({"api": "Produce", "drop": True, "stream": "x"}, "'topic', 'group', 'partition'"),
    ({"on": "Produce", "drop": True}, "unknown key 'on'. Known: 'api', 'client'"),
    ({"on": "Produce", "drop": True}, "; api is missing: the name of an API"),
    ({"faults": {"api": "Produce"}}, "write a list of faults"),
    ({"faults": [], "fault": 1}, "unknown key 'fault'; did you mean 'faults'"),
    ([7], "fault 1: 7 is no fault"),
    ("EndTxn", "'EndTxn' is no fault"),
    (None, "None is no fault"),
]


@pytest.mark.parametrize(("document", "text"), MISTAKES)
@pytest.mark.parametrize("door", ["yaml", "http"])
def test_a_mistake_is_named(kafka: Broker, tmp_path: Path, door: str, document: object, text: str) -> None:
    if door == "http":
        status, told = call("POST", f"{kafka.admin_url}/v1/faults", json.dumps(document).encode())
        assert (status, list(told)) == (400, ["error"])
        with pytest.raises(KitError, match=text):
            raise KitError(told["error"])
    else:
        path = tmp_path / "faults.yaml"
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(KitError, match=text):
            kafka.faults.load(path)
    assert kafka.faults.all() == []


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bomb(), "line 1: anchors and aliases are not possible here: write the values out"),
        ("- &x {api: Produce, drop: true}\n- *x", "line 1: anchors"),
        ("- api: Produce\n  drop: !!python/object/apply:os.getcwd []", "line 2: the tag .* is not possible here"),
        ("- api: Produce\n  drop: true\n  api: Fetch", "line 3: the key 'api' is there twice"),
        ("- {[a]: b}", "a key is a word"),
        ("- " + "[" * 5000, "nested deeper than 10"),
        ("- {api: Produce, nth: " + "9" * 5000 + ", drop: true}", "no YAML"),
        ("- {api: Produce, txn: 2026-13-45, drop: true}", "no YAML|as text|name no txn"),
        ("api: [", "this is no YAML"),
        ("a: b: c", "this is no YAML"),
        ("\0", "this is no YAML"),
        ("- a\n---\n- b", "this is no YAML"),
        ("", "None is no fault"),
        (
            "x" * (DOCUMENT_BYTES_MAX + 1),
            f"{DOCUMENT_BYTES_MAX + 1} bytes: a document has at most {DOCUMENT_BYTES_MAX}",
        ),
    ],
)
def test_a_text_that_is_no_table_of_faults(kafka: Broker, tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(text)
    with pytest.raises(KitError, match=problem):
        kafka.faults.load(path)


def test_a_file_that_cannot_be_read(kafka: Broker, tmp_path: Path) -> None:
    with pytest.raises(KitError, match=r"missing\.yaml cannot be read: No such file"):
        kafka.faults.load(tmp_path / "missing.yaml")
    with pytest.raises(KitError, match="cannot be read: Is a directory"):
        kafka.faults.load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"- api: \xe9")
    with pytest.raises(KitError, match="this is no YAML"):
        kafka.faults.load(tmp_path / "latin.yaml")
    for text in (b"{", b"\xe9", b'{"api": NaN}', b'{"api": 1, "api": 2}', b"9" * 5000):
        (tmp_path / "faults.json").write_bytes(text)
        with pytest.raises(
            KitError, match=r"faults\.json: (this is no JSON|NaN is no number|the key 'api' is there twice)"
        ):
            kafka.faults.load(tmp_path / "faults.json")
