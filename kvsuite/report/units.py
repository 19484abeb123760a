"""Numbers as a person reads them; the exact value stands beside them in the page."""

from __future__ import annotations

NOT_OBSERVED = "not observed"
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def byte_unit(value: float) -> tuple[int, str]:
    """Return the bytes of the largest binary unit that ``value`` fills once, and its name.

    >>> byte_unit(3 * 2**20)
    (1048576, 'MiB')
    """
    power = 0
    while abs(value) >= 1024 ** (power + 1) and power < len(_BYTE_UNITS) - 1:
        power += 1
    return 1024**power, _BYTE_UNITS[power]


def human_bytes(value: float | None) -> str:
    """Return bytes in binary units with three significant digits.

    >>> human_bytes(20 * 2**30), human_bytes(1536), human_bytes(0), human_bytes(None)
    ('20.0 GiB', '1.50 KiB', '0 B', 'not observed')
    """
    if value is None:
        return NOT_OBSERVED
    scale, unit = byte_unit(value)
    if unit == "B":
        return f"{value:,.0f} B"
    scaled = value / scale
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:,.{digits}f} {unit}"


def exact_bytes(value: float | None) -> str:
    """Return bytes to the digit.

    >>> exact_bytes(21474836480)
    '21,474,836,480 B'
    """
    return NOT_OBSERVED if value is None else f"{value:,.0f} B"


def count(value: float | None) -> str:
    """Return a count with thousands apart; a mean keeps one decimal.

    >>> count(102400), count(2.25), count(None)
    ('102,400', '2.2', 'not observed')
    """
    if value is None:
        return NOT_OBSERVED
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def percent(value: float | None) -> str:
    """Return a share as a percentage with one decimal, small ones with two.

    >>> percent(14582 / 102400), percent(0.0034), percent(1e-6), percent(0)
    ('14.2 %', '0.34 %', '< 0.01 %', '0.0 %')
    """
    if value is None:
        return NOT_OBSERVED
    if 0 < value < 0.00005:
        return "< 0.01 %"
    return f"{100 * value:.{2 if 0 < value < 0.00995 else 1}f} %"


def seconds(value: float) -> str:
    """Return a duration.

    >>> seconds(0.0042), seconds(12.5), seconds(3725)
    ('4 ms', '12.5 s', '1 h 02 min')
    """
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def plural(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun.

    >>> plural(1, "case"), plural(1200, "case"), plural(2, "child", "children")
    ('1 case', '1,200 cases', '2 children')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
