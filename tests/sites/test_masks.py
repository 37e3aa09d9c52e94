"""The protocol alone, without messages: sums are exact, whoever is lost, and nothing else is visible."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch
from Crypto.Cipher import ChaCha20 as OtherChaCha20
from scipy.stats import chi2

from headwise.authoring import Nothing, Params, Record, Shared, mean
from headwise.methods.scaffold import Trained
from headwise.records import Packed, RecordError
from headwise.sites.secagg.protocol import (
    Secrets,
    Share,
    Vector,
    add_up,
    agree,
    deal_shares,
    find_misfit,
    flatten,
    keystream,
    layout_of,
    mask_vector,
    mean_of,
    new_private_key,
    new_secrets,
    open_sum,
    parties_needed,
    public_key,
    read_share,
    restore_secret,
    seal,
    split_secret,
    unflatten,
    unseal,
)

WHERE = "run a, round 1"


class Party:
    """A site's half of the protocol, in memory."""

    def __init__(self, x: Vector) -> None:
        self.x = x
        self.secrets = new_secrets()
        self.shares: dict[int, Share] = {}


def vectors(count: int, size: int = 50) -> list[Vector]:
    rng = np.random.default_rng(0)
    return [rng.integers(-(2**40), 2**40, size).view(np.uint64) for _ in range(count)]


def open_total(
    xs: Sequence[Vector], *, early: Iterable[int] = (), late: Iterable[int] = (), silent: Iterable[int] = ()
) -> tuple[Vector, dict[int, Vector]]:
    """The opened sum and the masked vectors; parties are lost before they deal, mask or help."""
    parties = [Party(x) for x in xs]
    enough = parties_needed(2 / 3, len(xs))
    roster = [p.secrets.member() for p in parties]
    dealt = [u for u in range(len(xs)) if u not in set(early)]
    for u in dealt:
        letters = deal_shares(parties[u].secrets, u, roster, enough)
        for v in dealt:
            parties[v].shares[u] = read_share(parties[v].secrets.cipher, v, u, roster, letters[v])
    ys = {
        u: mask_vector(parties[u].x, parties[u].secrets, u, roster, dealt, WHERE) for u in dealt if u not in set(late)
    }
    shares = {h: [""] * len(xs) for h in ys if h not in set(silent)}
    for h in shares:
        for u in dealt:
            shares[h][u] = parties[h].shares[u].seed if u in ys else parties[h].shares[u].key
    return open_sum(ys, roster, dealt, shares, enough, WHERE), ys


def total(xs: Iterable[Vector]) -> Vector:
    return np.sum(np.stack(list(xs)), axis=0, dtype=np.uint64)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_the_sum_of_all_is_exact(count: int) -> None:
    xs = vectors(count)
    assert np.array_equal(open_total(xs)[0], total(xs))


@pytest.mark.parametrize("lost", [{0}, {6}, {2, 5}])
@pytest.mark.parametrize("moment", ["early", "late", "silent"])
def test_who_is_lost_leaves_no_trace_of_its_masks(moment: str, lost: set[int]) -> None:
    xs = vectors(7)
    found, _ = open_total(xs, **{moment: lost})
    left = [x for u, x in enumerate(xs) if moment == "silent" or u not in lost]
    assert np.array_equal(found, total(left))


def test_one_is_lost_at_each_moment() -> None:
    xs = vectors(9)
    found, _ = open_total(xs, early={1}, late={4}, silent={8})
    assert np.array_equal(found, total(x for u, x in enumerate(xs) if u not in (1, 4)))


@pytest.mark.parametrize("moment", ["late", "silent"])
def test_below_the_threshold_nothing_is_opened(moment: str) -> None:
    with pytest.raises(RecordError, match="but 5 of each are needed"):
        open_total(vectors(7), **{moment: {0, 1, 2}})


def test_the_threshold_is_three_at_least() -> None:
    assert [parties_needed(2 / 3, n) for n in (1, 3, 4, 6, 7, 9, 10)] == [3, 3, 3, 4, 5, 6, 7]
    assert parties_needed(1.0, 8) == 8
    assert parties_needed(0.51, 100) == 51


def test_fewer_shares_than_needed_tell_nothing_and_as_many_tell_all() -> None:
    secret = bytes(range(32)).hex()
    shares = dict(enumerate(split_secret(secret, 3, 5)))
    for some in itertools.combinations(shares, 3):
        assert restore_secret({party: shares[party] for party in some}) == secret
    for some in itertools.combinations(shares, 2):
        assert restore_secret({party: shares[party] for party in some}) != secret


def test_masked_vectors_do_not_look_like_anything() -> None:
    """All bytes are as frequent as chance has it, though what they hide is zero.

    Chance alone fails this test less than once in ten million times: six tails of 1e-8, and seven standard errors.
    """
    xs = [np.zeros(20_000, np.uint64) for _ in range(3)]
    found, ys = open_total(xs)
    assert not found.any()
    for y in ys.values():
        counts = np.bincount(y.view(np.uint8), minlength=256)
        statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
        assert chi2.ppf(1e-8, 255) < statistic < chi2.isf(1e-8, 255)
        assert np.unique(y).size == y.size
    assert abs(np.corrcoef(*(y.astype(float) for y in list(ys.values())[:2]))[0, 1]) < 0.05


def test_no_two_rounds_have_the_same_masks() -> None:
    """Neither with fresh secrets, as always, nor if the same were used twice by mistake."""
    x, secrets = vectors(1)[0], [new_secrets() for _ in range(3)]
    roster = [s.member() for s in secrets]
    first, again, later = (mask_vector(x, secrets[0], 0, roster, range(3), w) for w in (WHERE, WHERE, "run a, round 2"))
    assert np.array_equal(first, again)
    assert not (first == later).any()
    alone = [mask_vector(x, secrets[0], 0, roster, [], w) for w in (WHERE, "run a, round 2")]
    assert not (first - alone[0] == later - alone[1]).any()  # nor are those of pairs
    assert not (open_total([x] * 3)[1][0] == open_total([x] * 3)[1][0]).any()


def test_one_pair_of_masks_cancels_and_the_own_mask_does_not() -> None:
    secrets = [new_secrets() for _ in range(3)]
    roster, zero = [s.member() for s in secrets], np.zeros(9, np.uint64)
    ys = [mask_vector(zero, s, u, roster, range(3), WHERE) for u, s in enumerate(secrets)]
    assert total(ys).all()  # the three own masks are left
    seedless = [Secrets(s.cipher, s.mask, bytes(32).hex()) for s in secrets]
    own = mask_vector(zero, seedless[0], 0, roster, [], WHERE)
    assert np.array_equal(
        total(mask_vector(zero, s, u, roster, range(3), WHERE) for u, s in enumerate(seedless)), own * 3
    )


def test_the_keystream_is_that_of_another_library() -> None:
    key = bytes(range(32))
    other = OtherChaCha20.new(key=key, nonce=bytes(8))
    assert keystream(key, 1000) == other.encrypt(bytes(1000))
    assert keystream(key, 8).hex() == "39fd2b7dd9c5196a"


# -- what comes from use_local_nodes


def test_shares_that_are_not_what_they_should_be_are_refused() -> None:
    a, b, c = (new_secrets() for _ in range(3))
    roster = [s.member() for s in (a, b, c)]
    letters = deal_shares(a, 0, roster, 3)
    with pytest.raises(RecordError, match="can't be read"):
        read_share(b.cipher, 1, 0, roster, letters[2])  # sealed for another party
    with pytest.raises(RecordError, match="is from 0 to 1, not to 2"):
        read_share(b.cipher, 2, 0, roster, letters[1])
    with pytest.raises(RecordError, match="can't be read"):
        read_share(b.cipher, 1, 0, roster, letters[1][:-1] + ("B" if letters[1].endswith("A") else "A"))


def test_shares_of_another_party_or_another_secret_open_nothing() -> None:
    secrets = [new_secrets() for _ in range(4)]
    roster = [s.member() for s in secrets]
    seeds = [split_secret(s.seed, 3, 4) for s in secrets]
    keys = split_secret(new_private_key(), 3, 4)
    ys = {u: mask_vector(np.zeros(2, np.uint64), secrets[u], u, roster, range(4), WHERE) for u in range(3)}
    shares = {h: [*(seeds[u][h] for u in ys), keys[h]] for h in ys}
    with pytest.raises(RecordError, match="the shares of party 3 do not restore its key"):
        open_sum(ys, roster, range(4), shares, 3, WHERE)
    shares[0] = shares[1]
    with pytest.raises(RecordError, match="the shares of party 0 do not restore its seed"):
        open_sum(ys, roster, range(4), shares, 3, WHERE)
    shares[0] = ["00"] * 4
    with pytest.raises(RecordError, match="not a valid share: the shares differ in length"):
        open_sum(ys, roster, range(4), shares, 3, WHERE)


@pytest.mark.parametrize("public", ["", "00" * 49, "02" + "ff" * 48, "04" * 97, "zz"])
def test_a_key_beside_the_curve_is_refused(public: str) -> None:
    with pytest.raises(RecordError, match="this is not a valid key"):
        agree(new_private_key(), public)


def test_two_agree_on_what_a_third_does_not_know() -> None:
    a, b, c = new_private_key(), new_private_key(), new_private_key()
    shared = agree(a, public_key(b))
    assert shared == agree(b, public_key(a)) != agree(c, public_key(b))
    assert unseal(shared, seal(shared, b"text")) == b"text"
    with pytest.raises(RecordError, match="not a valid sealed message"):
        unseal(agree(c, public_key(b)), seal(shared, b"text"))


# -- records as integers


def records(count: int) -> dict[int, Shared]:
    rng = torch.Generator().manual_seed(3)

    def one() -> Shared:
        return Shared(Params(a=0.1 * torch.randn(40, 30, generator=rng), b=torch.randn(7, generator=rng)))

    return {c: one() for c in range(count)}


@pytest.mark.parametrize("sums", ["samples", "clients"])
def test_the_mean_of_fixed_point_numbers_is_the_mean(sums: str) -> None:
    found, samples = records(5), {0: 3, 1: 400, 2: 0, 3: 17, 4: 29}
    weights = [n if sums == "samples" else 1 for n in samples.values()]
    total = add_up(found, sums, samples)  # type: ignore[arg-type]
    got = mean_of(Shared, unflatten(flatten(total), total), sums, sum(weights))  # type: ignore[arg-type]
    assert isinstance(got, Shared)
    wanted = mean((r.w.map(torch.Tensor.double) for r in found.values()), weights)
    for name, t in wanted.items():
        assert got.w[name].dtype == torch.float32
        # what is left is float32's own rounding, 2**-24
        assert float((got.w[name].double() - t).abs().max()) < 1e-7 * float(t.abs().max())


def test_counters_become_their_rounded_mean_and_absent_fields_stay_absent() -> None:
    class Counting(Record):
        w: Params
        rate: Params | None

    def one(n: int) -> Counting:
        return Counting(Params(n=torch.tensor(n), x=torch.tensor([1.5], dtype=torch.float64)), None)

    total = add_up({0: one(10), 1: one(13)}, "clients", {0: 1, 1: 99})
    found = mean_of(Counting, total, "clients", 2)
    assert isinstance(found, Counting)
    assert found.w["n"].dtype == torch.int64 and int(found.w["n"]) == 12
    assert found.w["x"].dtype == torch.float64 and float(found.w["x"]) == 1.5
    assert found.rate is None


def test_nothing_can_be_summed_too() -> None:
    total = add_up({0: Nothing(), 1: Nothing()}, "clients", {0: 1, 1: 1})
    assert flatten(total).size == 0
    assert isinstance(mean_of(Nothing, unflatten(flatten(total), total), "clients", 2), Nothing)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.nan, "values in w/a that are not finite"),
        (-torch.inf, "values in w/a that are not finite"),
        (1e7, "values in w/a up to 1e+07, but under masks they must be below 1.71799e+06"),
        (1e6, None),
    ],
)
def test_what_can_not_be_summed_is_said(value: float, why: str | None) -> None:
    record = Shared(Params(a=torch.tensor([0.0, value])))
    assert find_misfit(record, "samples", 1000, 10) == why


def test_a_sum_at_the_limit_does_not_overflow() -> None:
    most = 2.0 ** (62 - 28) / 10 / 1000 * 0.999
    record = Shared(Params(a=torch.tensor([-most, most], dtype=torch.float64)))
    assert find_misfit(record, "samples", 1000, 10) is None
    one = flatten(add_up({0: record}, "samples", {0: 1000}))
    total = np.sum([one] * 10, axis=0, dtype=np.uint64)
    like = Packed({"w/a": torch.zeros(2, dtype=torch.int64)}, {"types": "float64", "none": ""})
    found = mean_of(Shared, unflatten(total, like), "samples", 10_000)
    assert isinstance(found, Shared)
    assert found.w["a"].tolist() == pytest.approx([-most, most])


def test_truth_values_and_unlike_messages_are_refused() -> None:
    truth = Shared(Params(a=torch.tensor([True])))
    assert find_misfit(truth, "clients", 1, 3) == "w/a of type torch.bool, which can't be summed under masks"
    one, other = Shared(Params(a=torch.zeros(2))), Shared(Params(a=torch.zeros(3)))
    with pytest.raises(RecordError, match="client 1 sent a message with another layout"):
        add_up({0: one, 1: other}, "clients", {0: 1, 1: 1})


@pytest.mark.parametrize(
    "total",
    [
        Packed({"w/a": torch.zeros(2)}, {"types": "float32", "none": ""}),
        Packed({"w/a": torch.zeros(2, dtype=torch.int64)}, {"types": "float32"}),
        Packed({"w/a": torch.zeros(2, dtype=torch.int64)}, {"types": "float32,float32", "none": ""}),
        Packed({"w/a": torch.zeros(2, dtype=torch.int64)}, {"types": "object", "none": ""}),
        Packed({"v/a": torch.zeros(2, dtype=torch.int64)}, {"types": "float32", "none": ""}),
        Packed({}, {"types": "", "none": "w?,v?"}),
    ],
)
def test_a_sum_that_is_none_is_refused(total: Packed) -> None:
    def read() -> None:
        layout_of(total)
        mean_of(Trained, total, "clients", 1)

    with pytest.raises(RecordError):
        read()
