"""Offers prompts in a scene and holds what is found of each against what was computed before (I8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import RefusalReason, Release, SupportsResetCache
from kvsuite.ledger.counts import kept_back
from kvsuite.ledger.prefix_keys import ComputedPrefixes, hit_unit, hits_computed, hits_kept
from kvsuite.replay.filling import to_be_had
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from kvsuite.replay.scene import Scene
    from kvsuite.trace.tokens import TokenContent


class Asker:
    """Plays ``scene``; ``unit`` is the number of tokens that hits come in::

    play = Asker(scene)
    words = scene.prompts.of(("words", 9))
    play.once("first", words, 9)                 # from its arrival to its end
    play.once("second", words, 9, kept=True)     # all that was computed must be found, and be right
    play.end()
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.unit = hit_unit(scene.engine.spec.pools)
        self.computed = ComputedPrefixes(self.unit)
        self._contents: dict[str, TokenContent] = {}
        self._lengths: dict[str, int] = {}
        self._asked: list[tuple[str, TokenRun, int, bool]] = []
        self._written: list[tuple[str, int, int]] = []

    def ask(
        self, name: str, content: TokenContent, tokens: int, *, chunk: int | None = None, kept: bool = False
    ) -> int | None:
        """Offer a prompt and return what was found of it, ``None`` where it was refused.

        ``kept`` says that nothing had to be given up since it was computed: all of it must be found.
        """
        admission = self.scene.admit(name, tokens, content=content, first_chunk=chunk)
        if admission.refusal is not None and admission.refusal.reason is RefusalReason.LOADING:
            self.step()
            admission = self.scene.admit(name, tokens, content=content, first_chunk=chunk)
        if not admission.accepted:
            return None
        hit = admission.hit_tokens
        self._contents[name], self._lengths[name] = content, admission.scheduled_tokens
        self._asked.append((name, TokenRun(content, 0, tokens), hit, kept))
        self._written.append((name, hit, admission.scheduled_tokens))
        return hit

    def grow(self, name: str, tokens: int = 1) -> None:
        """Let a live sequence have its next tokens, computed in the next step."""
        start = self._lengths[name]
        if self.scene.extend(name, tokens):
            self._lengths[name] = start + tokens
            self._written.append((name, start, start + tokens))

    def release(self, name: str, reason: Release = Release.FINISH) -> None:
        """Let a sequence go, before its step or after it."""
        self._written = [line for line in self._written if line[0] != name]
        self._asked = [line for line in self._asked if line[0] != name]
        self.scene.release(name, reason)

    def step(self) -> None:
        """Compute what was asked for, and judge what was found of it; transfers end at once.

        What is computed in this very step may be found in it, and need not be.
        """
        self.scene.step()
        key, number = self.scene.engine.spec.pools[0].key, self.scene.step_number
        for name, prompt, hit, kept in self._asked:
            if kept:
                self.scene.violations += hits_kept(key, name, prompt, hit, self.computed, number)
        for name, start, stop in self._written:
            self.computed.written(self._contents[name], start, stop)
        for name, prompt, hit, _ in self._asked:
            self.scene.violations += hits_computed(key, name, prompt, hit, self.computed, number)
        self._written, self._asked = [], []
        for transfer in list(self.scene.transfers):
            self.scene.acknowledge(transfer)

    def once(self, name: str, content: TokenContent, tokens: int, *, kept: bool = False) -> int | None:
        """Take a prompt from its arrival to its end."""
        hit = self.ask(name, content, tokens, kept=kept)
        self.step()
        if hit is not None:
            self.release(name)
        return hit

    def available(self) -> int:
        """Return the blocks to be had in the first pool."""
        return to_be_had(self.scene)

    def fill(self, name: str, *, tokens: int | None = None, leave: int = 0) -> list[str]:
        """Admit private requests of ``tokens`` (a unit) until ``leave`` blocks are left, or one is refused.

        With none left nothing idle is left either. Returns those that live.
        """
        names: list[str] = []
        length = tokens or self.unit
        while self.available() > leave:
            tenant = f"{name}{len(names)}"
            if self.ask(tenant, self.scene.prompts.of((tenant, length)), length) is None:
                self._grow_into(names, self.available() - leave)
                break
            names.append(tenant)
        self.step()
        return names

    def _grow_into(self, names: list[str], blocks: int) -> None:
        """Let the last of ``names`` take blocks that admission keeps back, as far as it does."""
        spec = self.scene.engine.spec
        taken = min(blocks, kept_back(spec))
        if names and taken > 0:
            size = spec.pools[0].block_size
            held = self._lengths[names[-1]]
            self.grow(names[-1], (-(-held // size) + taken) * size - held)

    def reset(self) -> bool:
        """Let the engine forget what it holds for nobody."""
        assert isinstance(self.scene.engine, SupportsResetCache)
        self.computed = ComputedPrefixes(self.unit)
        return self.scene.engine.reset_cache()

    def end(self) -> None:
        """Judge what the scene has come to."""
        self.scene.drain()
        self.scene.judge()
