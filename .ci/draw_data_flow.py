"""Draws README's picture of the data's way: python .ci/draw_data_flow.py > .ci/data_flow.svg"""

from html import escape

STAGES = [
    ("raw data", ["images, tables,", "archives, TFRecords"]),
    ("shards", ["~100 MB TFRecords,", "index, manifest"]),
    ("batches", ["the same on any", "number of hosts"]),
    ("model", ["checkpoints,", "an exact evaluation"]),
]
MOVES = [("convert", "Beam"), ("read", "tf.data"), ("train", "JAX")]
WIDTH, HEIGHT, GAP, TOP = 150, 84, 74, 12


def box(number: int, title: str, lines: list[str]) -> str:
    """A stage: its title in bold, then its lines."""
    x = 4 + number * (WIDTH + GAP)
    centre = x + WIDTH / 2
    texts = [f'<text x="{centre}" y="{TOP + 28}" font-weight="bold">{escape(title)}</text>']
    texts += [
        f'<text x="{centre}" y="{TOP + 50 + 18 * place}" font-size="13">{escape(line)}</text>'
        for place, line in enumerate(lines)
    ]
    frame = f'<rect x="{x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#eef4fb" stroke="#4a78a8"/>'
    return "\n".join([frame, *texts])


def arrow(number: int, verb: str, library: str) -> str:
    """What leads from a stage to the next."""
    x = 4 + WIDTH + number * (WIDTH + GAP)
    middle, y = x + GAP / 2, TOP + HEIGHT / 2
    line = f'<path d="M{x + 5} {y} H{x + GAP - 7}" stroke="#4a78a8" stroke-width="2" marker-end="url(#head)"/>'
    above = f'<text x="{middle}" y="{y - 8}" font-size="14">{verb}</text>'
    return "\n".join(
        [
            line,
            above,
            f'<text x="{middle}" y="{y + 20}" font-size="12" fill="#777">{library}</text>',
        ]
    )


def main() -> None:
    """Prints the picture."""
    width, height = 8 + 4 * WIDTH + 3 * GAP, 2 * TOP + HEIGHT
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    )
    print(' font-family="sans-serif" font-size="16" text-anchor="middle" fill="#24476b">')
    print("<title>Raw data is converted to shards, read as batches, and trained to a model</title>")
    print(f'<rect width="{width}" height="{height}" fill="white"/>')
    print(
        '<defs><marker id="head" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
    )
    print('<path d="M0 0 L8 4 L0 8 z" fill="#4a78a8"/></marker></defs>')
    for number, (title, lines) in enumerate(STAGES):
        print(box(number, title, lines))
    for number, (verb, library) in enumerate(MOVES):
        print(arrow(number, verb, library))
    print("</svg>")


if __name__ == "__main__":
    main()
