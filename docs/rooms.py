"""Write docs/rooms.svg: the rooms of src/gpx_scale in the order of tests/test_rooms.py, and the imports that it reads there.

A line leaves a room and ends, below, on every room that imports it; what follows from other imports is not drawn.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from test_rooms import FILES, ORDER, imports_of, room_of  # noqa: E402

WIDTH, STEP, TALL, MARGIN, GAP = 740, 42, 20, 8, 7
LINES = ("#0072b2", "#b34a00", "#00795a", "#8f3f71", "#555555", "#7a6400", "#3b4cc0", "#a3123a")  # 4.5 to 1 on white or more


def imports():
    """room -> the rooms that it imports when it is imported itself."""
    found = {room: set() for room in ORDER}
    for path in FILES:
        found[room_of(path)].update(other for other, at_top in imports_of(path) if at_top)
    return found


def essential(found):
    """Without those that another import brings along."""
    reached = {}
    for room in ORDER:
        reached[room] = found[room].union(*(reached[other] for other in found[room]))
    return {room: {o for o in found[room] if not any(o in reached[q] for q in found[room])} for room in ORDER}


def layers_of(found):
    """ORDER, cut where a room imports one of its own layer."""
    layers = [[]]
    for room in ORDER:
        if found[room] & set(layers[-1]):
            layers.append([])
        layers[-1].append(room)
    return layers


def width_of(node):
    """A room's box, or the line of one that passes by."""
    return 6.2 * len(label_of(node)) + 32 if isinstance(node, str) else 0.0


def label_of(room):
    return "gpx_scale" if room == "__init__" else room


def with_lines(layers, links):
    """Layers with a node (room, k) wherever the line of a room passes by the boxes of layer k; and pairs (above, below)."""
    level = {room: k for k, layer in enumerate(layers) for room in layer}
    layers, pairs = [list(layer) for layer in layers], []
    for room in ORDER:
        users = [other for other in ORDER if room in links[other]]
        last = max((level[other] for other in users), default=level[room])
        line = {level[room]: room} | {k: (room, k) for k in range(level[room] + 1, last)}
        for k in range(level[room] + 1, last):
            layers[k].append((room, k))
            pairs.append((line[k - 1], line[k]))
        pairs += [(line[level[other] - 1], other) for other in users]
    return layers, pairs


def placed(layers, pairs, sweeps=60):
    """node -> x of its middle. Down and up in turn, a layer is put near the means of what it is joined to in the one before;
    at the end, of all that it is joined to."""
    near = {node: [] for layer in layers for node in layer}
    for above, below in pairs:
        near[above].append(below)
        near[below].append(above)
    level = {node: k for k, layer in enumerate(layers) for node in layer}
    x = {node: WIDTH * (i + 0.5) / len(layer) for layer in layers for i, node in enumerate(layer)}
    for sweep in range(sweeps):
        down, last = sweep % 2 == 0, sweep >= sweeps - 6
        for layer in layers if down else reversed(layers):
            wanted = {}
            for node in layer:
                before = [x[other] for other in near[node] if last or (level[other] < level[node]) == down]
                wanted[node] = sum(before) / len(before) if before else x[node]
            layer.sort(key=wanted.get)
            x.update(apart(layer, wanted))
    left = min(x[node] - width_of(node) / 2 for node in x)
    right = max(x[node] + width_of(node) / 2 for node in x)
    assert right - left <= WIDTH - 2 * MARGIN, "too wide for the page"
    return {node: at + (WIDTH - left - right) / 2 for node, at in x.items()}


def apart(layer, wanted):
    """Middles close to those wanted, in their order: the mean of packing from the left and from the right."""
    right, edge = {}, -float("inf")
    for node in layer:
        right[node] = max(wanted[node], edge + GAP + width_of(node) / 2)
        edge = right[node] + width_of(node) / 2
    left, edge = {}, float("inf")
    for node in reversed(layer):
        left[node] = min(wanted[node], edge - GAP - width_of(node) / 2)
        edge = left[node] - width_of(node) / 2
    return {node: (left[node] + right[node]) / 2 for node in layer}


def picture():
    """The text of docs/rooms.svg."""
    found = imports()
    links = essential(found)
    layers, pairs = with_lines(layers_of(found), links)
    x = placed(layers, pairs)
    y = {node: TALL + STEP * k for k, layer in enumerate(layers) for node in layer}
    colour = {room: LINES[i % len(LINES)] for i, room in enumerate(ORDER)}
    users = {room: sum(room in others for others in found.values()) for room in ORDER}
    bottom = STEP * len(layers)
    size = f'viewBox="0 0 {WIDTH} {bottom + 64}" width="{WIDTH}" height="{bottom + 64}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>The {len(ORDER)} rooms of gpx_scale, and which imports which</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for above, below in pairs:
        room = above if isinstance(above, str) else above[0]
        out.append(line(x[above], y[above], x[below], y[below], isinstance(below, tuple), colour[room]))
    for room in ORDER:
        out += box(room, x[room], y[room], users[room], users[room] / max(users.values()), colour[room])
    drawn, whole = (sum(map(len, each.values())) for each in (links, found))
    legend = (
        "Box: a room. Number and shade: how many rooms import it. A line leaves a room and ends, below, on",
        f"those that import it; what follows from other imports is not drawn ({drawn} of {whole} imports are).",
        "Every import points upwards.",
    )
    out += [f'<text x="{MARGIN}" y="{bottom + 18 + 18 * k}" fill="#333333">{text}</text>' for k, text in enumerate(legend)]
    return "\n".join([*out, "</svg>", ""])


def line(x, y, x_end, y_end, passes, colour):
    """From below one node to above the next, and past it where it only passes."""
    top, end = y + TALL / 2, y_end - TALL / 2
    middle = (top + end) / 2
    path = f"M{x:.0f} {top:.0f}C{x:.0f} {middle:.0f} {x_end:.0f} {middle:.0f} {x_end:.0f} {end:.0f}"
    path += f"V{y_end + TALL / 2:.0f}" if passes else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.2"/>'


def box(room, x, y, users, share, colour):
    wide, shade = width_of(room), round(255 - 75 * share)
    yield (
        f'<rect x="{x - wide / 2:.0f}" y="{y - TALL / 2:.0f}" width="{wide:.0f}" height="{TALL}" rx="4" '
        f'fill="rgb({shade},{shade},255)" stroke="{colour}"/>'
    )
    count = f'<tspan dx="4" fill="#555555" font-size="10">{users}</tspan>' if users else ""
    yield f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle" fill="#111111">{label_of(room)}{count}</text>'


if __name__ == "__main__":
    HERE.joinpath("rooms.svg").write_text(picture())
