"""vLLM's own ``KVCacheManager`` under the policy of `kvsuite.replay.scheduler`, and nothing else.

Run by an interpreter that has vLLM, ``python vllm_manager.py ORDER.json``, with the keys of `Order`. kvsuite
is asked to find and to open the manager, before the clock starts; what is timed is this file's loop and
vLLM's ``allocate_slots`` and ``free``. Requests are vLLM's own, made before the clock starts. Prefixes are
not cached, a prompt is computed in one step, nobody forks, and no slot is worked out. Prints one JSON object.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, TypedDict

import numpy as np


class Order(TypedDict):
    """What is asked for."""

    kvsuite: str
    """Folder of the package."""
    columns: str
    """An ``.npy`` file, int64[3, requests]: step of arrival, prompt tokens, output tokens; by arrival."""
    block_size: int
    num_blocks: int
    """The null block among them."""
    max_sequences: int


Row = tuple[int, int, int, int, int, int, int]
"""Step, running, waiting, used blocks, preempted, admitted, finished: what `.rows` takes from a ledger."""


class Sequence:
    """A request under way: vLLM's own beside what the policy has to know."""

    __slots__ = ("generated", "output", "prompt", "request")

    def __init__(self, request: Any, prompt: int, output: int) -> None:
        self.request = request
        self.prompt = prompt
        self.output = output
        self.generated = 0


def replay(manager: Any, arrivals: list[int], sequences: list[Sequence], max_sequences: int) -> list[Row]:
    """Take every sequence through ``manager``, first come first served; return a row a step."""
    allocate, free, starts = manager.allocate_slots, manager.free, manager.new_step_starts
    take_new, free_blocks = manager.take_new_block_ids, manager.block_pool.get_num_free_blocks
    usable = free_blocks()
    waiting: deque[Sequence] = deque()
    running: list[Sequence] = []
    rows: list[Row] = []
    arrived, step, count = 0, 0, len(sequences)
    while running or waiting or arrived < count:
        if not running and not waiting:
            step = max(step, arrivals[arrived])
        starts()
        preempted = admitted = 0
        while arrived < count and arrivals[arrived] <= step:
            waiting.append(sequences[arrived])
            arrived += 1
        place = 0
        while place < len(running):  # one token each, oldest first; the youngest gives way
            sequence = running[place]
            while allocate(sequence.request, 1) is None:
                victim = running.pop()
                free(victim.request)
                victim.request.num_computed_tokens = 0
                waiting.appendleft(victim)
                preempted += 1
                if victim is sequence:
                    break
            else:
                sequence.request.num_computed_tokens += 1
                sequence.generated += 1
            place += 1
        while waiting and not preempted and len(running) < max_sequences:
            sequence = waiting[0]
            tokens = sequence.prompt + sequence.generated
            if allocate(sequence.request, tokens) is None:
                break
            waiting.popleft()
            sequence.request.num_computed_tokens = tokens
            running.append(sequence)
            admitted += 1
        take_new()
        used, live = usable - free_blocks(), len(running)
        for sequence in running:
            if sequence.generated >= sequence.output:
                free(sequence.request)
        running = [sequence for sequence in running if sequence.generated < sequence.output]
        rows.append((step, live, len(waiting), used, preempted, admitted, live - len(running)))
        step += 1
    return rows


def digest(rows: Any) -> str:
    """Return the hex BLAKE2b of rows int64[steps, 7], little-endian; `.rows.digest` is the same."""
    return hashlib.blake2b(np.asarray(rows, "<i8").tobytes(), digest_size=16).hexdigest()


def main() -> None:
    """Open, replay once, print."""
    order: Order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _know_kvsuite(order["kvsuite"])
    # kvsuite can be imported from here on, and only so: nothing beside it comes with it.
    from kvsuite.cache.layout import model_layout
    from kvsuite.engine.adapters.vllm.loading import load_core
    from kvsuite.engine.adapters.vllm.manager import BlockManager
    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.request import RequestId

    core = load_core()
    config = EngineConfig(model_layout("tiny"), order["block_size"], order["num_blocks"], prefix_cache=False)
    arrivals, prompts, outputs = np.load(order["columns"]).tolist()
    opened = BlockManager(core, config, max_model_tokens=2**31 - 1)
    sequences = [
        Sequence(opened.request(RequestId(str(index)), [0] * prompt, ""), prompt, output)
        for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]
    gc.collect()
    gc.freeze()
    started_s = time.process_time()
    rows = replay(opened.real, arrivals, sequences, order["max_sequences"])
    spent_s = time.process_time() - started_s
    said = {"version": core.version, "loader": core.loader, "seconds": spent_s, "digest": digest(rows)}
    print(json.dumps({**said, "steps": len(rows)}))


def _know_kvsuite(folder: str) -> None:
    """Make kvsuite importable without what is installed beside it."""
    spec = importlib.util.spec_from_file_location(
        "kvsuite", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kvsuite"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
