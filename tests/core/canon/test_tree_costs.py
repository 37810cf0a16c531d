"""What changes and reads of large containers cost, counted in blocks and bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from analemma import Operation
from analemma.errors import Invalid, NotFound
from tests.core.canon.memory_blocks import MemoryBlocks
from tests.depth import count, some

COUNT = count(test=2_000, deep=10_000)

ITEMS: dict[str, Any] = {
    "random": lambda number: f"{random.Random(number).getrandbits(200):x}" * 3,
    "identical": lambda number: "the same item " * 8,
    "periodic": lambda number: f"item {number % 7} " * 10,
    "one byte": lambda number: number * 7919 % 24,
    "identical byte": lambda number: 1,
    "9 KB": lambda number: f"{number}:" + "x" * 9000,
    "9 KB dict": lambda number: {f"f{field}": f"{number}:{field}" + "x" * 890 for field in range(10)},
}


def list_edits(pick: random.Random, make: Any) -> Operation:
    number = pick.randrange(COUNT)
    fresh = make(pick.randrange(COUNT)) if pick.random() < 0.5 else f"fresh {number}"
    return pick.choice(
        [
            Operation("add", ("-",), fresh),
            Operation("add", (str(number),), fresh),
            Operation("remove", (str(number),)),
            Operation("replace", (str(number),), fresh),
        ]
    )


def dict_edits(pick: random.Random, make: Any) -> Operation:
    number = pick.randrange(COUNT)
    fresh = make(pick.randrange(COUNT)) if pick.random() < 0.5 else f"fresh {number}"
    return pick.choice(
        [
            Operation("add", (f"zz{number:06}",), fresh),
            Operation("add", (f"k{number:05}x",), fresh),
            Operation("remove", (f"k{number:05}",)),
            Operation("replace", (f"k{number:05}",), fresh),
        ]
    )


SHAPE = pytest.mark.parametrize("shape", ["list", "dict"])


@SHAPE
def test_one_change_to_thousands_of_items_emits_few_blocks(shape: str) -> None:
    costly = []
    for items, make in ITEMS.items():
        blocks = MemoryBlocks()
        value = [make(n) for n in range(COUNT)] if shape == "list" else {f"k{n:05}": make(n) for n in range(COUNT)}
        root = blocks.build(value)
        blocks.blocks_fetched()
        pick = random.Random(11)
        emitted, sizes, fetched = [], [], []
        for _ in range(count(test=20, deep=120)):
            operation = (list_edits if shape == "list" else dict_edits)(pick, make)
            edited = blocks.trees.edit(root, [operation])
            emitted.append(len(edited.blocks))
            sizes.append(sum(len(block.data) for block in edited.blocks))
            fetched.append(blocks.blocks_fetched())
        if sorted(emitted)[-2] > 6 or max(sizes) > 128 * 1024 or max(fetched) > 12:
            costly.append((items, sorted(emitted), max(sizes), max(fetched)))
    assert costly == []


@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_one_byte_changed_in_a_long_value_stores_a_small_part(kind: str) -> None:
    """At most 1 MB of 50 MB."""
    size, most = count(test=4, deep=50) * 1_000_000, count(test=500_000, deep=1_000_000)
    text = random.Random(3).randbytes(size // 2).hex()
    at = size * 3 // 5
    changes = {
        "replace": text[:at] + "#" + text[at + 1 :],
        "insert": text[:at] + "#" + text[at:],
        "delete": text[:at] + text[at + 1 :],
    }
    blocks = MemoryBlocks()
    root = blocks.build({"field": text if kind == "text" else text.encode(), "other": 1})
    for change, changed in changes.items():
        new = changed if kind == "text" else changed.encode()
        edited = blocks.trees.edit(root, [Operation("replace", ("field",), new)])
        assert sum(len(block.data) for block in edited.blocks) <= most, change
        assert blocks.trees.get(blocks.save(edited), "/field") == new


def test_text_is_never_cut_inside_a_character() -> None:
    text = "äöü€\U0001f600" * 200_000
    blocks = MemoryBlocks()
    assert blocks.trees.read(blocks.build([text])) == [text]


@SHAPE
def test_reading_one_path_fetches_one_block_per_level(shape: str) -> None:
    blocks = MemoryBlocks()
    items = [{"n": n, "text": f"{n}" * 40} for n in range(COUNT)]
    value: Any = {"field": items if shape == "list" else {f"k{n}": item for n, item in enumerate(items)}}
    root = blocks.build(value)
    for number in (0, 1, COUNT // 2, COUNT - 1):
        token = str(number) if shape == "list" else f"k{number}"
        blocks.blocks_fetched()
        assert blocks.trees.get(root, ("field", token, "n")) == number
        assert blocks.blocks_fetched() <= 4


def test_reads_are_batched_per_level() -> None:
    blocks = MemoryBlocks()
    value = {f"field {n}": [{"text": f"{n}{m}" * 90} for m in range(200)] for n in range(20)}
    root = blocks.build(value)
    blocks.fetches.clear()
    assert blocks.trees.read(root) == value
    assert len(blocks.fetches) <= 5
    blocks.fetches.clear()
    blocks.trees.get_many(root, [f"/field {n}/{n}/text" for n in range(20)])
    assert len(blocks.fetches) <= 5
    blocks.fetches.clear()
    blocks.trees.edit(root, [Operation("put", (f"field {n}", "7", "text"), "new") for n in range(20)])
    # All descents share their fetches; a leaf that no longer ends where it did asks for its neighbour as well.
    assert blocks.fetches[:3] == [1, 20, 20]
    assert sum(blocks.fetches[3:]) <= 20


def test_many_trees_are_read_with_as_many_fetches_as_the_deepest() -> None:
    blocks = MemoryBlocks()
    small: list[Any] = [{"n": n} for n in range(50)]
    deep = [{"text": f"{m}" * 90} for m in range(2000)]
    values = [*small, deep, small[7]]
    roots = [blocks.build(value) for value in values]
    blocks.fetches.clear()
    blocks.trees.read(roots[50])
    expected = len(blocks.fetches)
    blocks.fetches.clear()
    found = blocks.trees.read_many(roots)
    assert found == values and len(blocks.fetches) == expected
    # What stands twice is read once, and shared by nobody.
    found[7]["n"] = "changed"
    assert found[51] == {"n": 7}
    assert blocks.trees.read_many([]) == []


@SHAPE
def test_diff_fetches_only_what_changed(shape: str) -> None:
    blocks = MemoryBlocks()
    items = [f"{random.Random(n).getrandbits(300):x}" for n in range(COUNT)]
    root = blocks.build(items if shape == "list" else {f"k{n}": i for n, i in enumerate(items)})
    tokens = [str(number) if shape == "list" else f"k{number}" for number in (17, COUNT // 2, COUNT - 2)]
    new = blocks.save(blocks.trees.edit(root, [Operation("replace", (token,), "changed") for token in tokens]))
    blocks.blocks_fetched()
    assert {(op.op, op.path, op.value) for op in blocks.trees.diff(root, new)} == {
        ("replace", (token,), "changed") for token in tokens
    }
    assert blocks.blocks_fetched() <= 2 * 3 * 3 + 2


WIDTHS = some([3, 40, 200, 700, 1400, 2000, 3000], test=[3, 200, 2000])


@SHAPE
def test_a_container_that_grew_item_by_item_is_the_one_built_at_once(shape: str) -> None:
    for width in WIDTHS:
        blocks = MemoryBlocks()
        value: Any = [] if shape == "list" else {}
        root = blocks.build(value)
        for number in range(count(test=120, deep=250) if width > 100 else count(test=500, deep=1500)):
            item = f"{random.Random(number).getrandbits(width * 4):x}"
            if shape == "list":
                value.append(item)
                operation = Operation("add", ("-",), item)
            else:
                value[f"k{number:06}"] = item
                operation = Operation("put", (f"k{number:06}",), item)
            root = blocks.edit(root, [operation])
            if number % count(test=31, deep=7) == 0:
                assert root == blocks.trees.build(value).root.id, f"{width}: after {number + 1} items"
        while value:
            value.pop() if shape == "list" else value.popitem()
            token = str(len(value)) if shape == "list" else f"k{len(value):06}"
            root = blocks.edit(root, [Operation("remove", (token,))])
            if len(value) % count(test=37, deep=11) == 0:
                assert root == blocks.trees.build(value).root.id, f"{width}: with {len(value)} items left"


LARGE = list(range(2000))

BATCHES: dict[str, list[Operation]] = {
    "the same twice": [Operation("put", ("a",), LARGE), Operation("put", ("a",), LARGE)],
    "there and back": [Operation("put", ("a",), LARGE), Operation("put", ("a",), [1]), Operation("put", ("a",), LARGE)],
    "one inside the other": [Operation("put", ("a",), ["x" * 5000]), Operation("put", ("a",), ["x" * 5000, 1])],
    "an item twice": [Operation("put", ("l", "0"), LARGE), Operation("put", ("l", "0"), LARGE)],
    "all, then a part": [Operation("replace", (), {"a": LARGE, "l": []}), Operation("put", ("a",), LARGE)],
    "two places, one replaced": [
        Operation("put", ("a",), LARGE),
        Operation("put", ("b",), LARGE),
        Operation("put", ("b",), "z" * 5000),
    ],
    "put, then changed inside": [Operation("put", ("a",), LARGE), Operation("put", ("a", "7"), "y")],
    "moved": [
        Operation("put", ("b",), ["w" * 4000]),
        Operation("remove", ("b",)),
        Operation("put", ("a",), ["w" * 4000]),
    ],
}


def test_a_batch_hands_over_every_block_that_the_old_tree_lacks() -> None:
    for name, batch in BATCHES.items():
        blocks = MemoryBlocks()
        root = blocks.build({"a": None, "l": [1, 2]})
        new = blocks.edit(root, batch)
        # Only these blocks and the old tree's are there to read from.
        assert new == blocks.trees.build(blocks.trees.read(new)).root.id, name


def test_what_is_appended_to_a_full_leaf_begins_a_new_one() -> None:
    blocks = MemoryBlocks()
    full = [f"text {number}" for number in range(957)]
    for value, items in ((full, ["text 957"]), ([], [str(number) for number in range(2000)])):
        edited = blocks.trees.edit(blocks.build(value), [Operation("add", ("-",), item) for item in items])
        assert edited.root == blocks.trees.build(value + items).root


def test_a_change_just_behind_a_leaf_that_was_full_moves_its_end_too() -> None:
    """Items among which none ends a leaf by itself: each leaf is as full as it may be, and ends after the item with the
    smallest hash, which items of the next leaf may undercut."""
    wrong = []
    for period in some([7, 23], test=[7]):
        blocks = MemoryBlocks()
        value = [f"item {number % period} " * 10 for number in range(1000)]
        root = blocks.build(value)
        for place in some(range(380, 520), test=range(440, 465)):
            for fresh in ("other " * 11, value[place - 1]):
                changed = [*value[:place], fresh, *value[place + 1 :]]
                if (
                    blocks.trees.edit(root, [Operation("put", (str(place),), fresh)]).root
                    != blocks.trees.build(changed).root
                ):
                    wrong.append((period, place, fresh))
    assert wrong == []


def test_every_item_of_a_list_with_many_changes_can_be_changed_again() -> None:
    blocks = MemoryBlocks()
    value = [f"item {number}" for number in range(900)]
    root = blocks.build(value)
    operations = []
    for number in range(0, 900, 2):
        value[number] = f"changed {number}"
        operations.append(Operation("put", (str(number),), value[number]))
    for number in range(900):
        value[number] += " again"
        operations.append(Operation("put", (str(number),), value[number]))
    for number in range(899, 0, -3):
        del value[number]
        operations.append(Operation("remove", (str(number),)))
    assert blocks.trees.edit(root, operations).root == blocks.trees.build(value).root


def test_thousands_of_changes_to_one_list_take_one_pass() -> None:
    blocks = MemoryBlocks()
    value = [f"item {number}" for number in range(count(test=4_000, deep=20_000))]
    root = blocks.build(value)
    pick = random.Random(5)
    operations = []
    for number in range(count(test=600, deep=3000)):
        place = pick.randrange(len(value))
        value[place] = f"changed {number}"
        operations.append(Operation("put", (str(place),), value[place]))
        if number % 3 == 0:
            value.insert(place, "new")
            operations.append(Operation("add", (str(place),), "new"))
    assert blocks.trees.edit(root, operations).root == blocks.trees.build(value).root


def test_replacing_a_large_value_by_a_similar_one_emits_the_difference() -> None:
    blocks = MemoryBlocks()
    messages = [{"role": "user", "content": f"{random.Random(n).getrandbits(4000):x}"} for n in range(2000)]
    root = blocks.build({"messages": messages, "other": "x" * 5000})
    edited = blocks.trees.edit(root, [Operation("put", ("messages",), [*messages, {"role": "tool", "content": "new"}])])
    assert len(edited.blocks) <= 4
    assert blocks.trees.get(blocks.save(edited), "/messages/2000/content") == "new"


BAD_EDITS: list[tuple[Operation, type[Exception], str]] = [
    (Operation("remove", ("missing",)), NotFound, "/missing"),
    (Operation("replace", ("missing",), 1), NotFound, "/missing"),
    (Operation("put", ("missing", "x"), 1), NotFound, "/missing"),
    (Operation("put", ("n", "x"), 1), Invalid, "/n"),
    (Operation("put", ("list", "x"), 1), Invalid, "/list/x"),
    (Operation("put", ("list", "01"), 1), Invalid, "/list/01"),
    (Operation("put", ("list", "3"), 1), NotFound, "/list/3"),
    (Operation("add", ("list", "4"), 1), NotFound, "/list/4"),
    (Operation("remove", ("list", "-")), Invalid, "/list/-"),
    (Operation("remove", ("list", "3")), NotFound, "/list/3"),
    (Operation("put", ("list", "-1"), 1), Invalid, "/list/-1"),
    (Operation("put", ("list", "٣"), 1), Invalid, "/list/٣"),
    (Operation("remove", ()), Invalid, ""),
    (Operation("put", ("when", "year"), 1), Invalid, "/when"),
    (Operation("put", ("list", "0", "bad"), float("nan")), Invalid, "/list/0"),
    (Operation("put", ("bad",), [1, float("nan")]), Invalid, "/bad/1"),
]


def test_an_edit_that_cannot_be_says_where() -> None:
    value: dict[str, Any] = {"n": 1, "list": [1, 2, 3], "when": (1, 2), "none": None}
    for padding in ({}, {f"padding {n}": "x" * 1000 for n in range(100)}):
        blocks = MemoryBlocks()
        root = blocks.build({**value, **padding})
        for operation, error, pointer in BAD_EDITS:
            with pytest.raises(error) as caught:
                blocks.trees.edit(root, [operation])
            assert getattr(caught.value, "pointer") == pointer, operation  # noqa: B009
