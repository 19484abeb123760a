"""Workloads whose requests begin with prompts that other requests begin with too."""

from __future__ import annotations

from kvsuite.trace.draws import BLOCK_SIZE, Draws
from kvsuite.trace.rows import Row

SHARED_PROMPTS = 24
_STEP_MS = 50


def shared_prefix(draws: Draws) -> list[Row]:
    """200 requests behind one system prompt of 400 tokens."""
    system = draws.ids(25)
    rows: list[Row] = []
    time_ms = 0
    for _ in range(200):
        prompt = len(system) * BLOCK_SIZE + draws.between(5, 200)
        ids = draws.ids_after(system, prompt)
        rows.append(
            Row(timestamp=time_ms, input_length=prompt, output_length=draws.between(5, 60), hash_ids=ids)
        )
        time_ms += draws.between(0, 200)
    return rows


def shared_prompts(draws: Draws) -> list[Row]:
    """1,500 short requests, each behind one of 24 shared prompts of 64, 128, 256 or 512 tokens.

    One comes a step on average (none, one or two steps after the one before it, one being twice as likely).
    It asks 1 to 23 tokens of its own and is answered with 1 to 23, the first of which comes with the prompt
    and the last of which is never written: 0 to 22 are. Every shared prompt fills whole blocks of 16, so
    what two requests share is exact in blocks of 16. With the seed of the name the shared prompts come to
    5,248 tokens: more than a pool of 4,096 holds, and about what one of 6,144 holds beside the requests.
    """
    prompts = [draws.ids(4 * 2 ** draws.between(0, 3)) for _ in range(SHARED_PROMPTS)]
    rows: list[Row] = []
    step = 0
    for _ in range(1500):
        step += (0, 1, 1, 2)[draws.between(0, 3)]
        head = prompts[draws.between(0, SHARED_PROMPTS - 1)]
        length = len(head) * BLOCK_SIZE + draws.between(1, 23)
        rows.append(
            Row(
                timestamp=step * _STEP_MS,
                input_length=length,
                output_length=draws.between(0, 22),
                hash_ids=draws.ids_after(head, length),
            )
        )
    return rows
