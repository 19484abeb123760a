"""Registers the plugin where kvsuite is not installed; its entry point does so where it is."""

from importlib.metadata import entry_points

_installed = any(point.value == "kvsuite.plugin" for point in entry_points(group="pytest11"))
pytest_plugins = ["pytester"] if _installed else ["pytester", "kvsuite.plugin"]
