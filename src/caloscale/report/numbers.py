"""Numbers as texts."""

from caloscale.physics.result import Measured

ABSENT = "absent"


def with_uncertainty(value: float | None, uncertainty: float | None, reason: str | None = None) -> str:
    """Such as 0.0123 ± 0.0045 or (6.3 ± 2.4)e-5: the uncertainty has two significant digits. reason: goes after it."""
    if reason:
        return f"{with_uncertainty(value, uncertainty)}: {reason}"
    if value is None:
        return ABSENT
    if not uncertainty or uncertainty < 1e-9 * abs(value):  # the second is rounding
        return plain(value)
    decimals = max(0, 1 - _exponent(uncertainty))
    if decimals > 5:
        power = _exponent(max(abs(value), uncertainty))
        digits = max(0, 1 - _exponent(uncertainty) + power)
        scale = 10.0**power
        return f"({value / scale:.{digits}f} ± {uncertainty / scale:.{digits}f})e{power}"
    return f"{value:.{decimals}f} ± {uncertainty:.{decimals}f}"


def measured(number: Measured, scale: float = 1) -> str:
    """A measured number with its uncertainty, both times a scale."""
    value, uncertainty = (None if v is None else scale * v for v in (number.value, number.uncertainty))
    return with_uncertainty(value, uncertainty)


def percent(number: Measured) -> str:
    """A measured ratio in per cent."""
    return ABSENT if number.value is None else f"{measured(number, 100)} %"


def plain(value: float | None) -> str:
    """Three significant digits."""
    return ABSENT if value is None else f"{value:.3g}"


def signed(value: float | None) -> str:
    """Standard deviations with their sign."""
    return ABSENT if value is None else f"{value:+.1f} sigma"


def _exponent(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])
