"""Answers pip's question for metadata from the ``PKG-INFO`` that every source distribution carries.

``pip download`` asks the build backend of a source distribution for its name and version before it keeps the
file. The real backend would run the distribution's ``setup.py``, which may need torch, compilers and minutes.
"""

from __future__ import annotations

from email.parser import HeaderParser
from pathlib import Path


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, str] | None = None
) -> str:
    """Write the ``.dist-info`` folder of the distribution in the working directory; return its name."""
    del config_settings
    text = Path("PKG-INFO").read_text(encoding="utf-8")
    headers = HeaderParser().parsestr(text)
    folder = Path(metadata_directory, f"{headers['Name'].replace('-', '_')}-{headers['Version']}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(text, encoding="utf-8")
    return folder.name
