"""Line charts as SVG text, without a library: a few lines, axes with round numbers, a legend."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8a5a9e", "#c98b1a", "#555555")
Line = list[tuple[float, float]]


def round_steps(low: float, high: float, most: int = 8) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high]."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def powers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten within [low, high]."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    candidates = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    return [value for value in candidates if low * 0.999 <= value <= high * 1.001]


def chart(title: str, x_label: str, y_label: str, lines: dict[str, Line]) -> str:
    """Both axes in plain numbers, y in a logarithmic scale. Points without a finite y above 0 are left out."""
    kept = {name: [(x, y) for x, y in line if math.isfinite(y) and y > 0] for name, line in lines.items()}
    points = [point for line in kept.values() for point in line]
    if not points:
        return _frame(title, [f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">nothing to show</text>'])
    x_low, x_high = min(0.0, *(x for x, _ in points)), max(x for x, _ in points) * 1.02 or 1.0
    y_low, y_high = min(y for _, y in points) / 1.3, max(y for _, y in points) * 1.3

    def at_x(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - math.log(y / y_low) / math.log(y_high / y_low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for x in round_steps(x_low, x_high):
        parts.append(f'<line class="grid" x1="{at_x(x):.1f}" x2="{at_x(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at_x(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>')
    for y in powers(y_low, y_high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(y):.1f}" y2="{at_y(y):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for index, (name, line) in enumerate(kept.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        if len(line) <= 20:
            parts += [f'<circle fill="{colour}" r="3" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}"/>' for x, y in line]
        parts.append(f'<text fill="{colour}" x="{LEFT + 10}" y="{TOP + 16 + 16 * index}">{escape(name)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x_label)}</text>')
    upright = f'transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {upright}>{escape(y_label)}</text>")
    return _frame(title, parts)


def _frame(title: str, parts: list[str]) -> str:
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            'font-size="12"><style>.grid{stroke:#ddd}</style>'
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
            f'<text x="{WIDTH / 2}" y="22" text-anchor="middle" font-size="15">{escape(title)}</text>')
    return "\n".join([head, *parts, "</svg>\n"])
