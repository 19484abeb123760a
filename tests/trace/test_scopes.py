"""Scopes: equal tokens under another adapter, image or salt have equal ids and nothing else in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_engine
from kvsuite.errors import TraceError
from kvsuite.replay.driver import replay
from kvsuite.trace.identity import canonical_text, content_hash
from kvsuite.trace.load import hit_tokens, load_trace
from kvsuite.trace.tokens import TokenContent, TokenRun, mix64
from kvsuite.trace.writer import mooncake_losses, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    PutRows = Callable[..., Path]

HEADER = {"block_size": 4, "tail": "ceil"}
SCOPES = ["", "lora-1", "lora-2", "\0", "a", "aa", "\x01"]


def request(name: str, at: float = 0, **keys: Any) -> dict[str, Any]:
    shape = {"input_length": 10, "output_length": 2, "hash_ids": [1, 2, 3]}
    return {"request_id": name, "timestamp": at, **shape, **keys}


def sample(name: str, **keys: Any) -> dict[str, Any]:
    fork = {"parent": "a", "fork": "sample", "fork_at": 10}
    return {"request_id": name, "timestamp": 0, "input_length": 10, "output_length": 2, **fork, **keys}


def test_equal_tokens_have_equal_ids_and_no_prefix_in_common() -> None:
    contents = [TokenContent((3, 9), (8,), scope) for scope in SCOPES]
    for stop in (1, 8, 9, 200):
        runs = [TokenRun(content, 0, stop) for content in contents]
        ids = runs[0].token_ids(50_000).tolist()
        assert all(run.token_ids(50_000).tolist() == ids for run in runs)
        assert len({content.prefix_key(stop) for content in contents}) == len(SCOPES)
        assert len({int(run.tags()[-1]) for run in runs}) == len(SCOPES)


def test_a_scope_takes_no_other_prefix_s_place() -> None:
    keys = {
        TokenContent((key,), (), scope).prefix_key(end)
        for scope in SCOPES
        for key in (0, 1, 2**31 - 1)
        for end in (1, 2, 2**31 - 1)
    }
    assert len(keys) == len(SCOPES) * 3 * 3


@pytest.mark.parametrize("scope", SCOPES)
def test_the_seed_of_a_tag_is_that_of_its_token(scope: str) -> None:
    content = TokenContent((3, 9), (8,), scope)
    seeds = np.array([content.tag_seed(position) for position in range(20)], np.int64)
    assert mix64(seeds).tolist() == content.tags(0, 20).tolist()


def test_without_a_scope_keys_and_tags_are_what_they_were() -> None:
    content = TokenContent((3, 9), (8,))
    assert content.prefix_key(10) == (9 << 32) + 10
    assert content.tags(9, 10).tolist() == mix64(np.array([(9 << 32) + 9], np.int64)).tolist()


def test_what_is_forked_has_its_parent_s_scope() -> None:
    parent = TokenContent((3, 9), (8,), "lora-1")
    assert parent.forked(5, 70).scope == "lora-1"
    assert parent.forked(0, 70).scope == "lora-1"
    assert parent.forked(5, 70).prefix_key(5) == parent.prefix_key(5)


def test_scopes_are_read_written_and_hashed(put_rows: PutRows, tmp_path: Path) -> None:
    rows = [
        request("a", scope="x"),
        sample("a.1"),
        request("b"),
        request("c", scope="y"),
        request("d", scope=""),
    ]
    trace = load_trace(put_rows(*rows, request("e", scope="x"), header=HEADER))
    assert trace.scopes == ("x", "x", "", "y", "", "x")
    assert [each.scope for each in trace] == list(trace.scopes)
    assert [trace.prompt(k).scope for k in range(len(trace))] == list(trace.scopes)
    assert canonical_text(trace).decode().splitlines()[1:] == [
        "0 10 2 b=0-1 q=0 k=0",
        "0 10 2 f=0:sample:10 k=0",
        "0 10 2 b=0-1 q=0",
        "0 10 2 b=0-1 q=0 k=1",
        "0 10 2 b=0-1 q=0",
        "0 10 2 b=0-1 q=0 k=0",
    ]
    write_trace(trace, tmp_path / "again.jsonl")
    again = load_trace(tmp_path / "again.jsonl")
    assert (again.scopes, content_hash(again)) == (trace.scopes, content_hash(trace))
    assert trace.select(np.array([2, 3])).scopes == ("", "y")


def test_the_hash_tells_equal_scopes_and_not_their_names(put_rows: PutRows) -> None:
    def hashed(*scopes: str) -> str:
        rows = [request(f"r{k}", scope=scope) for k, scope in enumerate(scopes)]
        return content_hash(load_trace(put_rows(*rows, header=HEADER)))

    bare = content_hash(load_trace(put_rows(request("r0"), request("r1"), header=HEADER)))
    assert hashed("", "") == bare
    assert hashed("x", "x") == hashed("other", "other")
    assert len({bare, hashed("x", "x"), hashed("x", "y"), hashed("", "x"), hashed("x", "")}) == 5


def test_a_sample_of_another_scope_is_refused(put_rows: PutRows) -> None:
    file = put_rows(request("a", scope="x"), sample("a.1", scope="y"), header=HEADER)
    with pytest.raises(TraceError, match="line 3: its scope is 'y', expected that of its parent: 'x'"):
        load_trace(file)


def test_a_spawn_has_a_scope_of_its_own(put_rows: PutRows) -> None:
    spawn: dict[str, Any] = {"parent": "a", "fork": "spawn", "fork_at": 0}
    trace = load_trace(put_rows(request("a", scope="x"), request("b", **spawn), header=HEADER))
    assert trace.scopes == ("x", "")


def test_hits_of_a_cold_cache_stay_in_their_scope(put_rows: PutRows) -> None:
    scopes = ["x", "y", "", "x"]
    rows = [request(f"r{k}", at=k * 1000, scope=scope) for k, scope in enumerate(scopes)]
    assert hit_tokens(load_trace(put_rows(*rows, header=HEADER))) == 10


def test_plain_mooncake_would_lose_scopes(put_rows: PutRows) -> None:
    trace = load_trace(put_rows(request("a", scope="x"), request("b"), header=HEADER))
    assert any(loss.startswith("scopes: ") for loss in mooncake_losses(trace))


@pytest.mark.parametrize(
    ("engine", "hits"), [("reference", [0, 0, 8]), ("mutant:key-without-scope", [0, 8, 8])]
)
def test_the_reference_keeps_scopes_apart(put_rows: PutRows, engine: str, hits: list[int]) -> None:
    rows = [request(f"r{k}", at=k * 1000, scope=scope) for k, scope in enumerate(["x", "y", "x"])]
    trace = load_trace(put_rows(*rows, header=HEADER))
    done = replay(trace, open_engine(engine, EngineConfig(model_layout("tiny"), 4, 16)), read_all=True)
    assert [outcome.hit_tokens for outcome in done.outcomes] == hits
    assert {violation.invariant for violation in done.violations} == ({"content"} if hits[1] else set())


def test_an_id_that_stands_twice_is_named_beside_scopes(put_rows: PutRows) -> None:
    with pytest.raises(TraceError, match="request a @ line 3: its id stands twice"):
        load_trace(put_rows(request("a", scope="x"), request("a", scope="y"), header=HEADER))
