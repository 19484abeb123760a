"""Each case goes to the kind of engine that it drives; the other kind skips it and says why."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvsuite.record.reader import read_record

CONFORMANCE = Path(__file__).parents[2] / "cases" / "conformance"
CASE = """
import pytest
from kvsuite.engine.contract import Capability
from kvsuite.trace.synthetic import synthetic

pytestmark = pytest.mark.requires(Capability.REQUEST_DRIVEN)


def test_a_few_requests(kv_requests):
    assert kv_requests(synthetic("boundary").head(8), num_blocks=64).violations == ()
"""


@pytest.fixture
def both(project: pytest.Pytester) -> pytest.Pytester:
    """The project of three cases that drive an engine token by token, and one that drives it by requests."""
    (project.path / "cases" / "conformance" / "test_by_requests.py").write_text(CASE)
    return project


def test_an_engine_driven_by_requests_skips_the_others(both: pytest.Pytester) -> None:
    ended = both.runpytest("--engine=reference-requests", "-rs", "cases/conformance")
    ended.assert_outcomes(passed=1, skipped=3)
    ended.stdout.fnmatch_lines(
        ["*reference-requests is driven by requests: this case drives its engine token by token*"]
    )


def test_an_engine_driven_token_by_token_skips_that_one(both: pytest.Pytester) -> None:
    ended = both.runpytest("--engine=acme", "-rs", "cases/conformance/test_by_requests.py")
    ended.assert_outcomes(skipped=1)
    ended.stdout.fnmatch_lines(["*acme does not claim REQUEST_DRIVEN*"])


def test_an_engine_of_one_block_size_is_opened_with_it(both: pytest.Pytester) -> None:
    engine = both.path / "lib" / "acme_engine.py"
    engine.write_text(
        "from kvsuite.engine.registry import open_any_engine\n"
        "from kvsuite.errors import ConfigError\n\n\n"
        "def Acme(config):\n"
        "    if config.block_size != 32:\n"
        "        raise ConfigError('blocks of 32 tokens only')\n"
        "    return open_any_engine('reference-requests', config)\n"
    )
    ended = both.runpytest("--engine=acme", "cases/conformance/test_by_requests.py")
    ended.assert_outcomes(passed=1)


def test_the_record_says_that_content_is_unchecked(both: pytest.Pytester) -> None:
    page = both.path / "report.html"
    ended = both.runpytest(
        "--engine=reference-requests", f"--kv-report={page}", "cases/conformance/test_by_requests.py"
    )
    ended.assert_outcomes(passed=1)
    record = read_record(page.with_name("run.jsonl"))
    (content,), (case,), (ledger,) = record.contents, record.cases, record.ledgers
    assert (content.mode, content.tokens_read) == ("none", 0)
    assert case.worker == "none"
    assert "content (slots)" in case.not_judged
    assert ledger.peaks["live_blocks"] is not None
    assert ledger.totals["preempted"] is None
    assert "content unchecked" in page.read_text(encoding="utf-8")


def test_the_shipped_cases_hold_on_the_reference(project: pytest.Pytester) -> None:
    shutil.copy(CONFORMANCE / "test_requests.py", project.path / "cases" / "conformance")
    ended = project.runpytest(
        "--engine=reference-requests",
        "cases/conformance/test_requests.py",
        "-k",
        "not workload and not small",
    )
    ended.assert_outcomes(passed=11, deselected=10)
