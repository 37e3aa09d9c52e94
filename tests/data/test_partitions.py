"""The invariants of every scheme, the laws they follow, what they share, and hostile settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.app import registry
from headwise.data.partition.base import Partition, count_labels, cut, deal, divide_evenly, lift
from headwise.data.partition.dirichlet import Dirichlet
from headwise.data.partition.exdir import ExDir, draw_owners
from headwise.data.partition.iid import IID
from headwise.data.partition.natural import Natural
from headwise.data.partition.pathological import Pathological, group_owners
from headwise.data.partition.public_exdir import PublicExDir
from headwise.data.partition.shamsian import Shamsian, draw_even_owners
from headwise.errors import ConfigError, DataError
from headwise.settings.fields import build, check, field_help, field_types
from headwise.settings.names import list_names, name_of

MNIST = np.arange(70_000) % 10
DIGITS = np.random.default_rng(0).permutation(np.arange(1_797) % 10)

NAMES = list_names("partition")
SCHEMES = [
    *(registry.find("partition", name)() for name in NAMES if name != "natural"),  # which needs owners
    IID(balance=False),
    Pathological(balance=True),
    Pathological(assignment="shards"),
    Dirichlet(0.5, balance=False),
    Dirichlet(1.0, min_size=7),
    ExDir(3, 5.0, balance=False),
    Shamsian(3),
]


ALWAYS_THE_SAME = [Pathological(balance=True), PublicExDir()]
"""schemes that draw nothing, or only from a seed of their own"""


def rng_of(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def divide(scheme: Partition, labels, clients: int, seed: int = 0, owner=None):
    """The groups, once they are known to be disjoint, complete and nowhere empty."""
    groups = scheme.divide(labels, clients, rng_of(seed), owner)
    assert len(groups) == clients
    assert all(len(g) and g.dtype == np.int64 for g in groups)
    assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(len(labels)))
    return groups


def counts_of(scheme: Partition, labels, clients: int, seed: int = 0):
    """[clients, classes] of a valid partition."""
    counts = count_labels(labels, divide(scheme, labels, clients, seed), int(labels.max()) + 1)
    assert np.array_equal(counts.sum(0), np.bincount(labels))
    return counts


# every scheme


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
@pytest.mark.parametrize("clients", [10, 20, 37])
def test_disjoint_complete_and_class_counts_preserved(scheme, clients):
    counts_of(scheme, DIGITS, clients)


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_pure_function_of_its_arguments(scheme):
    before = DIGITS.copy()
    first, again, other = (scheme.divide(DIGITS, 20, rng_of(s), None) for s in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    same = all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert same == (scheme in ALWAYS_THE_SAME)
    assert np.array_equal(before, DIGITS)


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_more_clients_than_samples_is_an_error(scheme):
    with pytest.raises(DataError, match=r"clients is 30, but there are only 20 samples: give fewer clients\."):
        scheme.divide(np.arange(20) % 10, 30, rng_of(), None)


@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_labels_with_gaps(scheme):
    counts = counts_of(scheme, np.array([2, 5, 9, 11, 30, 31])[DIGITS % 6], 12)
    assert counts.shape == (12, 32)


@pytest.mark.parametrize("scheme", [IID(), Dirichlet(), ExDir(1), Pathological(1), Shamsian(1)], ids=repr)
def test_one_client_and_one_class(scheme):
    assert len(divide(scheme, np.zeros(50, dtype=np.int64), 1)[0]) == 50


@pytest.mark.parametrize("scheme", [IID(), Dirichlet(), ExDir(10), Pathological(10), Shamsian(10)], ids=repr)
def test_one_client_takes_everything(scheme):
    assert len(divide(scheme, DIGITS, 1)[0]) == len(DIGITS)


SMALL = st.one_of(
    st.builds(IID, st.booleans()),
    st.builds(Dirichlet, st.sampled_from([1e-6, 0.01, 0.5, 1e6]), st.none() | st.integers(1, 9), st.booleans()),
    st.builds(
        ExDir, st.integers(1, 5), st.sampled_from([1e-6, 0.1, 5.0, 1e6]), st.booleans(), min_size=st.integers(1, 12)
    ),
    st.builds(Pathological, st.integers(1, 5), st.booleans(), st.sampled_from(["grouped", "shards"])),
    st.builds(Shamsian, st.integers(1, 5)),
)


@settings(deadline=None, max_examples=120)
@given(SMALL, st.lists(st.integers(0, 6), min_size=1, max_size=150), st.integers(1, 25), st.integers(0, 99))
def test_valid_or_one_sentence(scheme, labels, clients, seed):
    labels = np.array(labels)
    try:
        counts = counts_of(scheme, labels, clients, seed)
    except DataError as error:
        text = str(error)
        assert text.endswith(".")
        assert ". " not in text
        assert any(field in text for field in ("clients", "classes_per_client", "min_size"))
        return
    held = (counts > 0).sum(1)
    sizes = counts.sum(1)
    match scheme:
        case Pathological(assignment="grouped"):
            assert (held == scheme.classes_per_client).all()
        case ExDir():
            assert (held <= scheme.classes_per_client).all()
            assert (sizes >= scheme.min_size).all()
        case Shamsian():
            assert (held <= scheme.classes_per_client).all()
        case Dirichlet():
            assert (sizes >= (scheme.min_size or min(40, len(labels) // clients // 2))).all()
        case _:
            pass


# settings


@pytest.mark.parametrize("name", NAMES)
def test_found_by_name_with_help_for_every_option(name):
    cls = registry.find("partition", name)
    entry = registry.read_card("partition", name)
    assert name_of("partition", cls) == name
    assert entry.title
    assert entry.summary.endswith(".")
    assert list(field_types(cls)) == list(field_help(cls)) == list(entry.fields)
    check(cls())


def test_helpers_are_no_schemes():
    assert not {"base", "shares", "repair"} & set(list_names("partition"))


def test_order_of_the_options():
    assert Dirichlet(0.3) == build(Dirichlet, {"alpha": 0.3})
    assert ExDir(2, 0.5) == build(ExDir, {"classes_per_client": 2, "alpha": 0.5})
    assert Pathological(3) == build(Pathological, {"classes_per_client": 3})
    assert Shamsian(3) == build(Shamsian, {"classes_per_client": 3})
    assert build(Dirichlet, {"min_size": None}) == Dirichlet()


@pytest.mark.parametrize(
    ("cls", "values"),
    [(Dirichlet, {"alpha": 0.0}), (ExDir, {"min_size": 0}), (Pathological, {"assignment": "random"})],
)
def test_ranges_are_checked(cls, values):
    with pytest.raises(ConfigError):
        build(cls, values)


# iid


def test_iid_sizes():
    sizes = [len(g) for g in divide(IID(), DIGITS, 20)]
    assert max(sizes) - min(sizes) <= 1
    varied = [len(g) for g in divide(IID(balance=False), MNIST, 20)]
    assert max(varied) > 2 * min(varied)
    assert [len(g) for g in divide(IID(balance=False), np.zeros(20, dtype=np.int64), 20)] == [1] * 20


def test_iid_clients_look_alike():
    counts = counts_of(IID(), MNIST, 20)
    assert np.abs(counts - 350).max() < 6 * np.sqrt(350)


# pathological


@pytest.mark.parametrize("clients", [5, 6, 10, 20, 33])
@pytest.mark.parametrize("classes_per_client", [2, 3, 4, 7, 10])
@pytest.mark.parametrize("balance", [False, True])
def test_pathological_exactly_c_classes(clients, classes_per_client, balance):
    counts = counts_of(Pathological(classes_per_client, balance), MNIST, clients)
    assert ((counts > 0).sum(1) == classes_per_client).all()


def test_pathological_groups_consecutive_clients():
    owners = counts_of(Pathological(2), MNIST, 20) > 0
    expected = [[client // 4 * 2, client // 4 * 2 + 1] for client in range(20)]
    assert [list(np.flatnonzero(row)) for row in owners] == expected


def test_pathological_sizes_of_the_public_generator():
    column = counts_of(Pathological(2), MNIST, 20)[:4, 0]
    assert ((column[:3] >= 175) & (column[:3] < 1750)).all()
    assert column[3] == 7000 - column[:3].sum()


def test_pathological_balanced_and_in_stored_order():
    groups = divide(Pathological(2, balance=True), MNIST, 20)
    assert {len(g) for g in groups} == {3500}
    assert np.array_equal(groups[0][MNIST[groups[0]] == 0], np.flatnonzero(MNIST == 0)[:1750])


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 12))
def test_group_owners_miss_nobody(clients, classes, per_client):
    per_client = min(per_client, classes)
    if clients * per_client >= classes:
        owners = group_owners(clients, classes, per_client)
        assert (owners.sum(1) == per_client).all()
        assert owners.any(0).all()


def test_shards_are_equal_and_few():
    counts = counts_of(Pathological(2, assignment="shards"), MNIST, 100)
    assert (counts.sum(1) == 700).all()
    assert ((counts > 0).sum(1) <= 2).all()  # 20 shards per class: none crosses a border
    assert (counts_of(Pathological(5, assignment="shards"), DIGITS, 359).sum(1) >= 5).all()


def test_pathological_errors_say_what_to_change():
    with pytest.raises(DataError, match=r"leaves some of the 10 classes to nobody: give 5 clients or 4 classes per cl"):
        Pathological(2).divide(MNIST, 3, rng_of(), None)
    with pytest.raises(DataError, match=r"classes_per_client is 11, but must be at most 10"):
        Pathological(11).divide(MNIST, 20, rng_of(), None)
    with pytest.raises(DataError, match=r"a class of 3 samples to 4 clients: give fewer clients"):
        Pathological(2).divide(np.repeat([0, 1], [3, 50]), 4, rng_of(), None)
    with pytest.raises(DataError, match=r"too few for 2000 shards \(1000 clients\)"):
        Pathological(2, assignment="shards").divide(DIGITS, 1000, rng_of(), None)


# Dirichlet


@pytest.mark.parametrize(("clients", "least"), [(20, 40), (100, 8), (1000, 1)])
def test_dirichlet_minimum(clients, least):
    assert counts_of(Dirichlet(), DIGITS, clients).sum(1).min() >= least
    assert counts_of(Dirichlet(1e-6, balance=False), DIGITS, clients).sum(1).min() >= least


def test_dirichlet_shares_follow_the_law():
    """For p ~ Dir(a, ..., a) over N clients, E[sum p²] = (a + 1) / (N a + 1)."""
    for alpha in (0.1, 1.0, 10.0):
        scheme = Dirichlet(alpha, min_size=1, balance=False)
        shares = np.concatenate([counts_of(scheme, MNIST, 10, s) / 7000 for s in range(40)], axis=1)
        expected = (alpha + 1) / (10 * alpha + 1)
        assert (shares**2).sum(0).mean() == pytest.approx(expected, rel=0.1)
        assert np.abs(shares.mean(1) - 0.1).max() < 0.06


def test_balance_rule_stops_full_clients():
    """Before its last class a client holds less than the mean, so without that class it is below the mean."""
    counts = counts_of(Dirichlet(0.5), MNIST, 20)
    last = counts[np.arange(20), 9 - (counts[:, ::-1] > 0).argmax(1)]
    assert (counts.sum(1) - last < 3500).all()
    free = counts_of(Dirichlet(0.5, balance=False), MNIST, 20)
    assert counts.sum(1).std() < free.sum(1).std()


def test_huge_alpha_gives_equal_shares():
    assert np.abs(counts_of(Dirichlet(1e6, balance=False), MNIST, 20) - 350).max() <= 5


def test_dirichlet_error_says_what_to_change():
    with pytest.raises(DataError, match=r"min_size is 100, but 1797 samples give 20 clients at most 89 each"):
        Dirichlet(0.1, min_size=100).divide(DIGITS, 20, rng_of(), None)


# extended Dirichlet


@pytest.mark.parametrize("scheme", [ExDir(), ExDir(2, 5.0), ExDir(5, 0.5, balance=False), ExDir(2, 1e-6)], ids=repr)
@pytest.mark.parametrize("clients", [10, 100])
def test_exdir_few_classes_and_enough_samples(scheme, clients):
    counts = counts_of(scheme, MNIST, clients)
    assert ((counts > 0).sum(1) <= scheme.classes_per_client).all()
    assert counts.sum(1).min() >= 10


@pytest.mark.parametrize(
    ("clients", "classes", "per_client"), [(100, 10, 2), (100, 100, 5), (5, 10, 2), (50, 100, 2), (7, 3, 3)]
)
def test_exdir_owners_per_class(clients, classes, per_client):
    for seed in range(5):
        owners = draw_owners(clients, classes, per_client, rng_of(seed))
        assert (owners.sum(1) == per_client).all()
        assert owners.sum(0).min() >= max(per_client * clients // classes // 2, 1)


def test_exdir_repair_respects_ownership_when_tight():
    counts = counts_of(ExDir(2, 0.5), DIGITS, 175)
    assert counts.sum(1).min() >= 10
    assert ((counts > 0).sum(1) <= 2).all()


def test_exdir_errors_say_what_to_change():
    with pytest.raises(DataError, match=r"min_size is 10, but 1797 samples are too few for 200 clients with 2 cl"):
        ExDir().divide(DIGITS, 200, rng_of(), None)
    with pytest.raises(DataError, match=r"min_size is 10, but 1797 samples are too few for 150 clients with 1 cl"):
        ExDir(1).divide(DIGITS, 150, rng_of(), None)


# c/C


@pytest.mark.parametrize(
    ("clients", "classes", "c"), [(100, 10, 2), (10, 10, 2), (100, 100, 10), (13, 10, 3), (10, 10, 8)]
)
def test_shamsian_classes(clients, classes, c):
    owners = draw_even_owners(clients, classes, c, rng_of())
    assert (owners.sum(1) == c).all()
    assert np.ptp(owners.sum(0)) <= (0 if clients * c % classes == 0 else 1)
    assert ((counts_of(Shamsian(c), np.arange(60_000) % classes, clients) > 0).sum(1) == c).all()


def test_shamsian_shares():
    """Numbers from U(0.4, 0.6), normalized: no client of a class has more than 1.5 times another's share."""
    counts = counts_of(Shamsian(2), MNIST, 100)
    column = counts[counts[:, 0] > 0, 0]
    assert len(column) == 20
    assert column.max() <= 1.5 * (column.min() + 1)


# natural


def test_natural_clients_are_the_owners():
    owner = np.array([7, 3, 7, 9, 3])
    groups = divide(Natural(), np.zeros(5, dtype=np.int64), 3, owner=owner)
    assert [list(g) for g in groups] == [[1, 4], [0, 2], [3]]


def test_natural_errors():
    with pytest.raises(DataError, match=r"clients is 4, but this data set has 3 natural clients: give 3\."):
        Natural().divide(np.zeros(3, dtype=np.int64), 4, rng_of(), np.arange(3))
    with pytest.raises(DataError, match=r"this data set has no natural clients"):
        Natural().divide(np.zeros(3, dtype=np.int64), 3, rng_of(), None)


# scale and hostility


@pytest.mark.parametrize(
    "scheme",
    [
        IID(),
        Pathological(),
        Pathological(assignment="shards"),
        Dirichlet(),
        pytest.param(Dirichlet(1e-6), marks=pytest.mark.long),
        ExDir(5),
        Shamsian(10),
        Natural(),
    ],
    ids=repr,
)
def test_ten_thousand_clients(scheme):
    labels = rng_of().integers(0, 100, 1_000_000)
    divide(scheme, labels, 10_000, owner=rng_of(1).permutation(1_000_000) % 10_000)


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e-3, 1e6])
@pytest.mark.parametrize("clients", [1, 11, 500, 1797])
def test_hostile_settings_end(alpha, clients):
    counts_of(Dirichlet(alpha), DIGITS, clients)
    try:
        counts_of(ExDir(2, alpha, min_size=2), DIGITS, clients)
    except DataError:
        assert clients in (1, 1797)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(lambda s: sum(s) > 1e-3), st.integers(0, 10**7))
def test_cut_adds_up(shares, n):
    sizes = cut(np.array(shares), n)
    exact = np.array(shares) / sum(shares) * n
    assert sizes.sum() == n
    assert (np.abs(sizes - exact) <= 1 + 1e-6 * n).all()
    assert (sizes[np.array(shares) == 0] == 0).all()


def test_even():
    assert list(divide_evenly(10, 4)) == [2, 3, 2, 3]


def test_deal_inverts_histograms():
    counts = count_labels(DIGITS, Dirichlet().divide(DIGITS, 20, rng_of(), None), 10)
    assert np.array_equal(count_labels(DIGITS, deal(DIGITS, counts, rng_of(3)), 10), counts)


def test_lift_passes_samples_on_over_others():
    """Client 2 needs class 1; only client 1 has it and is at the minimum, but takes class 0 from client 0 instead."""
    counts = np.array([[9, 0], [0, 3], [0, 1]])
    lifted = lift(counts, 3, np.array([[True, False], [True, True], [False, True]]))
    assert lifted is not None
    assert lifted.tolist() == [[7, 0], [2, 1], [0, 3]]
    assert counts.tolist() == [[9, 0], [0, 3], [0, 1]]
    assert lift(counts, 3, np.array([[True, False], [False, True], [False, True]])) is None


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_lift_finds_a_repair_whenever_there_is_one(clients, classes, seed):
    """A matrix in which everyone has enough, scattered among the owners, can always be mended."""
    rng = rng_of(seed)
    allowed = rng.random((clients, classes)) < 0.5
    allowed[np.arange(clients), rng.integers(0, classes, clients)] = True
    good = rng.integers(1, 5, (clients, classes)) * allowed
    least = int(good.sum(1).min())
    scattered = np.zeros_like(good)
    for k in np.flatnonzero(allowed.any(0)):
        np.add.at(scattered[:, k], rng.choice(np.flatnonzero(allowed[:, k]), good[:, k].sum()), 1)
    lifted = lift(scattered, least, allowed)
    assert lifted is not None
    assert (lifted.sum(1) >= least).all()
    assert (lifted >= 0).all()
    assert not lifted[~allowed].any()
    assert np.array_equal(lifted.sum(0), good.sum(0))


CIFAR = np.repeat(np.arange(10), 6_000)  # the sizes of CIFAR-10's classes: the draw depends on nothing else


def count_public(scheme: PublicExDir, labels=CIFAR, clients: int = 100):
    groups = scheme.divide(labels, clients, np.random.default_rng(0), None)
    assert len(np.unique(np.concatenate(groups))) == sum(map(len, groups))
    return count_labels(labels, groups, int(labels.max()) + 1)


def test_the_floor_and_the_clients_below_one_batch_are_those_of_the_authors_draw() -> None:
    drawn = count_public(PublicExDir())
    assert drawn.sum() == len(CIFAR)
    assert round(drawn.max(1).sum() / drawn.sum() * 100, 2) == 89.95
    assert (drawn.sum(1) * 3 // 4 < 100).sum() == 18
    assert (drawn > 0).sum(1).max() == 2
    assert drawn.sum(1).min() >= 10


def test_the_draw_is_the_seeds_and_not_the_runs() -> None:
    draws = [
        PublicExDir(numpy_seed=s).divide(CIFAR, 100, np.random.default_rng(r), None)
        for s, r in ((1, 0), (1, 9), (2, 0))
    ]
    same, other = ([np.array_equal(a, b) for a, b in zip(draws[0], d, strict=True)] for d in draws[1:])
    assert all(same) and not any(other)


def test_a_thinned_draw_keeps_the_clients() -> None:
    whole = count_public(PublicExDir())
    kept = count_public(PublicExDir(keep=0.25))
    assert np.abs(kept.sum(1) - whole.sum(1) / 4).max() <= 0.5
    assert not (kept[whole == 0]).any()


def test_every_owner_full_gives_a_class_to_its_last_owner() -> None:
    labels = np.repeat([0, 1], [900, 20])  # all four clients are above the mean once the first class is dealt or own it
    drawn = count_public(PublicExDir(2, 100.0), labels, 4)
    assert drawn.sum() == 920


def test_a_draw_that_cannot_be_is_one_sentence() -> None:
    with pytest.raises(DataError, match="numpy_seed is 1, but none of"):
        PublicExDir(1, 0.5).divide(np.repeat(np.arange(2), 5), 4, np.random.default_rng(0), None)
