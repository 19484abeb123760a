"""The pytest plugin: the only code of kvsuite that knows pytest.

It is loaded by the entry point ``kvsuite`` of the group ``pytest11``, or by the checkout's own
``conftest.py``. In a session that has nothing to do with the suite it registers options, fixtures and
markers, and does nothing else.

    options      what was asked for, checked before any worker starts
    devices      workers and cards
    subjects     the engines under test, opened once to learn what they claim
    case_id      what a case is called, wherever it was installed
    selection    which cases run on which engine, and which are expected to fail
    deviations   the engine author's list of known deviations
    timing       cases that measure time: when they run, and what their figures are compared with
    fixtures     what cases use; replays and golden_check are the work behind them
    notes        what a case leaves behind, on its way from a worker to the controller
    recorder     the controller's side: writes goldens, record and report
    summary      the last words of a run
"""

pytest_plugins = (
    "kvsuite.plugin.options",
    "kvsuite.plugin.devices",
    "kvsuite.plugin.notes",
    "kvsuite.plugin.selection",
    "kvsuite.plugin.timing",
    "kvsuite.plugin.fixtures",
    "kvsuite.plugin.recorder",
)
