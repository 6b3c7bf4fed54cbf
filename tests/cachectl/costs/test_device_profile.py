"""Prefill times are exact at measured points, interpolated between them, and never fall with more tokens."""

import json
import math
import os
import pickle
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.prefill_grid import PrefillGrid
from protocol.errors import ConfigError, InvalidRequest
from protocol.tiers import Tier

#           new:   100  300
GRID = PrefillGrid(
    (0, 1000),
    (100, 300),
    (
        (2.0, 4.0),
        (3.0, 9.0),
    ),
)
FARTHEST = 200_000
# A busy machine must not fail a test.
UNHURRIED = settings(deadline=None)


@st.composite
def _axes(draw) -> list[int]:
    return sorted(draw(st.sets(st.integers(0, 5000), min_size=2, max_size=6)))


@st.composite
def _rising_grids(draw) -> PrefillGrid:
    """Grids whose times never fall. Some have level steps, and all have random ones."""
    cached, new = draw(_axes()), draw(_axes())
    steps = st.lists(st.floats(0, 3), min_size=len(new), max_size=len(new))
    sums = [0.001] * len(new)
    rows = []
    for _ in cached:
        sums = [before + rise for before, rise in zip(sums, accumulate(draw(steps)), strict=True)]
        rows.append(tuple(sums))
    return PrefillGrid(tuple(cached), tuple(new), tuple(rows))


def _profile_of(grid: PrefillGrid = GRID, **changes: object) -> DeviceProfile:
    device = DeviceProfile("slow", "made up", 1000.0, 100.0, 10, grid)
    return msgspec.structs.replace(device, **changes)


TOKENS = st.integers(0, 6000) | st.integers(0, FARTHEST)


class TestInsideTheGrid:
    @UNHURRIED
    @given(grid=_rising_grids())
    def test_every_point_is_exact(self, grid):
        for cached, row in zip(grid.cached, grid.points, strict=True):
            for new, time in zip(grid.new, row, strict=True):
                assert grid.seconds(cached, new) == (time if new else 0.0)

    def test_times_between_points_are_bilinear(self):
        assert GRID.seconds(0, 200) == 3.0
        assert GRID.seconds(500, 100) == 2.5
        # A quarter of the way along new: 2.5 and 4.5. Half of the way along cached: 3.5.
        assert GRID.seconds(500, 150) == 3.5

    @UNHURRIED
    @given(grid=_rising_grids(), data=st.data())
    def test_times_in_a_cell_weigh_the_corners_by_the_opposite_areas(self, grid, data):
        i = data.draw(st.integers(0, len(grid.cached) - 2))
        j = data.draw(st.integers(0, len(grid.new) - 2))
        (low, high), (first, last) = grid.cached[i : i + 2], grid.new[j : j + 2]
        cached, new = data.draw(st.integers(low, high)), data.draw(st.integers(max(1, first), last))
        corners = [grid.points[i][j], grid.points[i][j + 1], grid.points[i + 1][j], grid.points[i + 1][j + 1]]
        areas = [
            (high - cached) * (last - new),
            (high - cached) * (new - first),
            (cached - low) * (last - new),
            (cached - low) * (new - first),
        ]
        expected = sum(area * corner for area, corner in zip(areas, corners, strict=True))
        assert grid.seconds(cached, new) == pytest.approx(expected / sum(areas), rel=1e-9)


class TestOutsideTheGrid:
    def test_nothing_new_takes_no_time(self):
        assert GRID.seconds(0, 0) == GRID.seconds(1000, 0) == GRID.seconds(10**6, 0) == 0.0

    def test_few_new_tokens_cost_a_launch_and_their_share(self):
        # The line through (100, 2 s) and (300, 4 s) meets 0 tokens at 1 s.
        assert GRID.seconds(0, 50) == 1.5
        assert GRID.seconds(0, 1) == pytest.approx(1.01)

    def test_the_launch_cost_never_falls_with_more_cached_tokens(self):
        # Behind 1000 cached, the line through (100, 3 s) and (300, 9 s) meets 0 at 0 s. A launch still costs 1 s.
        assert GRID.seconds(1000, 50) == 2.0

    def test_a_launch_cost_is_never_negative(self):
        steep = PrefillGrid((0, 1), (100, 200), ((1.0, 10.0), (1.0, 10.0)))
        assert steep.seconds(0, 50) == 0.5

    def test_a_launch_never_costs_more_than_the_first_point(self):
        falling = PrefillGrid((0, 1), (100, 200), ((2.0, 1.0), (1.0, 1.0)))
        assert falling.seconds(0, 50) == 2.0
        assert falling.seconds(1, 50) == 1.0

    def test_a_grid_that_begins_at_0_new_tokens_states_the_launch_cost(self):
        grid = PrefillGrid((0, 1), (0, 100), ((1.0, 2.0), (1.0, 2.0)))
        assert grid.seconds(0, 50) == 1.5
        assert grid.seconds(0, 0) == 0.0

    def test_fewer_cached_tokens_than_measured_cost_what_the_first_point_costs(self):
        grid = PrefillGrid((100, 200), (1, 2), ((1.0, 2.0), (2.0, 3.0)))
        assert [grid.seconds(cached, 1) for cached in (0, 50, 100, 150)] == [1.0, 1.0, 1.0, 1.5]

    def test_times_beyond_the_last_points_follow_the_last_cell(self):
        assert GRID.seconds(2000, 100) == pytest.approx(4.0)
        # Behind 2 x 1000 cached, 300 new take 4 s + 2 x 5 s.
        assert GRID.seconds(2000, 300) == pytest.approx(4 + 5 * 2)

    @pytest.mark.parametrize("cached", [0, 400, 1000, 5000])
    @pytest.mark.parametrize("new", [301, 500, 600, 601, 2500])
    def test_more_new_tokens_than_measured_are_prefilled_in_steps(self, cached, new):
        steps = [min(300, new - begin) for begin in range(0, new, 300)]
        expected = sum(GRID.seconds(cached + 300 * number, tokens) for number, tokens in enumerate(steps))
        assert GRID.seconds(cached, new) == pytest.approx(expected)

    def test_a_last_slope_that_falls_is_not_followed_below_the_border(self):
        falling = PrefillGrid((0, 10), (10, 20), ((2.0, 1.5), (1.9, 1.0)))
        assert falling.seconds(1000, 10) == 1.9
        assert falling.seconds(1000, 20) == 1.0

    def test_a_flat_last_slope_is_replaced_by_the_slope_of_fewer_tokens(self):
        flattened = PrefillGrid((0, 10), (10, 20), ((1.0, 2.0), (2.0, 2.0)))
        assert flattened.seconds(40, 10) == pytest.approx(5.0)
        assert flattened.seconds(40, 20) == pytest.approx(5.0)

    @pytest.mark.parametrize(("cached", "new"), [(-1, 5), (5, -1), (-1, 0), (0, -1)])
    def test_negative_tokens_are_refused(self, cached, new):
        with pytest.raises(InvalidRequest, match="negative"):
            GRID.seconds(cached, new)


class TestEverywhere:
    @UNHURRIED
    @given(grid=_rising_grids(), cached=TOKENS, new=TOKENS, more_cached=TOKENS, more_new=TOKENS)
    def test_time_never_falls_as_tokens_grow(self, grid, cached, new, more_cached, more_new):
        time = grid.seconds(cached, new)
        assert 0 <= time < math.inf
        for more in (grid.seconds(cached + more_cached, new), grid.seconds(cached, new + more_new)):
            assert more >= time * (1 - 1e-9)

    @UNHURRIED
    @given(grid=_rising_grids(), tokens=st.integers(1, FARTHEST), step=st.integers(1, FARTHEST))
    def test_times_beyond_the_grid_are_linear_in_cached_tokens(self, grid, tokens, step):
        last_cached = grid.cached[-1]
        border, once, twice = (grid.seconds(last_cached + times * step, tokens) for times in range(3))
        assert once - border == pytest.approx(twice - once, rel=1e-6, abs=1e-9 * twice)


@pytest.mark.parametrize(
    ("cached", "new", "seconds", "why"),
    [
        ((0,), (1, 2), ((1.0, 1.0),), "cached axis needs two"),
        ((0, 1), (), ((), ()), "new axis needs two"),
        ((0, 0), (1, 2), ((1.0, 1.0), (1.0, 1.0)), "cached axis must increase"),
        ((0, 1), (2, 1), ((1.0, 1.0), (1.0, 1.0)), "new axis must increase"),
        ((-1, 1), (1, 2), ((1.0, 1.0), (1.0, 1.0)), "begins at -1"),
        ((0, 1), (-5, 2), ((1.0, 1.0), (1.0, 1.0)), "begins at -5"),
        ((0, 1), (1, 2), ((1.0, 1.0),), "a time for each pair"),
        ((0, 1), (1, 2), ((1.0, 1.0), (1.0,)), "a time for each pair"),
        ((0, 1), (1, 2), ((1.0, 1.0), (1.0, 1.0, 1.0)), "a time for each pair"),
        ((0, 1), (1, 2), ((1.0, 0.0), (1.0, 1.0)), "positive and finite"),
        ((0, 1), (1, 2), ((1.0, -1.0), (1.0, 1.0)), "positive and finite"),
        ((0, 1), (1, 2), ((1.0, math.nan), (1.0, 1.0)), "positive and finite"),
        ((0, 1), (1, 2), ((1.0, 1.0), (1.0, math.inf)), "positive and finite"),
    ],
)
def test_a_grid_of_bad_points_is_refused(cached, new, seconds, why):
    with pytest.raises(ConfigError, match=why):
        PrefillGrid(cached, new, seconds)


def test_equal_grids_have_equal_points_and_survive_pickling():
    assert PrefillGrid(GRID.cached, GRID.new, GRID.points) == GRID
    assert pickle.loads(pickle.dumps(GRID)) == GRID
    assert PrefillGrid((0, 1000), (100, 300), ((2.0, 4.0), (3.0, 9.5))) != GRID
    assert GRID != "a grid"


class TestProfileFiles:
    @UNHURRIED
    @given(
        grid=_rising_grids(),
        name=st.text(),
        source=st.text(),
        rates=st.tuples(st.floats(1e-3, 1e15), st.floats(1e-3, 1e15)),
        kv_bytes=st.integers(1, 2**40),
    )
    def test_saving_and_loading_round_trips(self, tmp_path_factory, grid, name, source, rates, kv_bytes):
        path = tmp_path_factory.getbasetemp() / "round-trip.json"
        device = DeviceProfile(name, source, *rates, kv_bytes, grid)
        device.save(path)
        assert DeviceProfile.load(path) == device

    def test_a_saved_profile_is_readable(self, tmp_path):
        path = tmp_path / "slow.json"
        _profile_of().save(path)
        text = path.read_text()
        assert '\n  "name": "slow",\n' in text
        assert json.loads(text) == {
            "name": "slow",
            "source": "made up",
            "host_bytes_per_s": 1000.0,
            "disk_bytes_per_s": 100.0,
            "kv_bytes_per_token": 10,
            "grid": {"cached_tokens": [0, 1000], "new_tokens": [100, 300], "seconds": [[2.0, 4.0], [3.0, 9.0]]},
        }

    def test_saving_replaces_the_file_and_leaves_nothing_beside_it(self, tmp_path):
        path = tmp_path / "slow.json"
        _profile_of(source="first").save(path)
        _profile_of(source="second").save(path)
        assert DeviceProfile.load(path).source == "second"
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("failing", ["fsync", "replace"])
    def test_a_save_that_fails_leaves_the_old_file(self, tmp_path, monkeypatch, failing):
        def full(*_args: object) -> None:
            raise OSError(28, "No space left on device")

        path = tmp_path / "slow.json"
        _profile_of(source="first").save(path)
        monkeypatch.setattr(*((os, "fsync") if failing == "fsync" else (Path, "replace")), full)
        with pytest.raises(OSError, match="No space"):
            _profile_of(source="second").save(path)
        assert DeviceProfile.load(path).source == "first"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(ConfigError, match=r"nowhere\.json"):
            DeviceProfile.load(tmp_path / "nowhere.json")

    @pytest.mark.parametrize(
        ("field", "value", "why"),
        [
            ("kv_bytes_per_token", 0, "positive"),
            ("kv_bytes_per_token", 1.5, "int"),
            ("host_bytes_per_s", -1, "positive"),
            ("disk_bytes_per_s", "fast", "float"),
            ("grid", {"cached_tokens": [0, 1], "new_tokens": [1, 2]}, "seconds"),
            ("grid", {"cached_tokens": [0, 1], "new_tokens": [1, 2], "seconds": [[1, 1], [1, 0]]}, "positive"),
            ("grid", {"cached_tokens": [0, 1], "new_tokens": [2, 1], "seconds": [[1, 1], [1, 1]]}, "increase"),
            ("grid", {"cached_tokens": [0, 1], "new_tokens": [1, 2], "seconds": [[1, 1], [1, 1]], "unit": 1}, "unit"),
            ("grid", [], "object"),
            ("gird", 1, "gird"),
        ],
    )
    def test_a_broken_field_is_named_with_its_file(self, tmp_path, field, value, why):
        path = tmp_path / "broken.json"
        _profile_of().save(path)
        path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
        with pytest.raises(ConfigError, match=rf"broken\.json.*{why}"):
            DeviceProfile.load(path)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"name": "\xff"}', b"NaN"])
    def test_a_malformed_file_is_named(self, tmp_path, content):
        path = tmp_path / "broken.json"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"broken\.json"):
            DeviceProfile.load(path)

    @pytest.mark.parametrize("name", ["h1000-7b", "", "../profiles/a10g-7b", "a10g-7b.json"])
    def test_an_unknown_shipped_profile_is_named_with_the_known_ones(self, name):
        with pytest.raises(ConfigError) as refused:
            DeviceProfile.shipped(name)
        assert f"{name}.json" in str(refused.value)
        assert "a10g-7b" in str(refused.value).partition("shipped are:")[2]


class TestDeviceProfile:
    @pytest.mark.parametrize("field", ["host_bytes_per_s", "disk_bytes_per_s", "kv_bytes_per_token"])
    @pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
    def test_rates_and_sizes_are_positive(self, field, value):
        with pytest.raises(ConfigError, match=field) as refused:
            _profile_of(**{field: value})
        assert refused.value.param == field

    def test_loading_takes_bytes_over_rates(self):
        device = _profile_of()
        # 50 tokens are 500 bytes: 0.5 s from host memory, and 5 s more from disk.
        assert device.load_seconds(50, Tier.GPU) == 0.0
        assert device.load_seconds(50, Tier.HOST) == 0.5
        assert device.load_seconds(50, Tier.DISK) == 5.5
        assert all(device.load_seconds(0, tier) == 0.0 for tier in Tier)

    @pytest.mark.parametrize("tier", list(Tier))
    def test_negative_tokens_are_refused(self, tier):
        with pytest.raises(InvalidRequest, match="negative"):
            _profile_of().load_seconds(-1, tier)
        with pytest.raises(InvalidRequest, match="negative"):
            _profile_of().prefill_seconds(-1, 1)

    def test_prefill_times_are_those_of_the_grid(self):
        assert _profile_of().prefill_seconds(500, 150) == GRID.seconds(500, 150)

    def test_another_model_of_the_same_size_differs_in_kv_bytes(self):
        llama = DeviceProfile.shipped("a10g-7b")
        mistral = replace(llama, kv_bytes_per_token=131072)
        assert mistral.load_seconds(1000, Tier.HOST) == llama.load_seconds(1000, Tier.HOST) / 4
        assert mistral.prefill_seconds(1000, 1000) == llama.prefill_seconds(1000, 1000)
        assert llama.kv_bytes_per_token == 524288
        with pytest.raises(ConfigError):
            replace(llama, kv_bytes_per_token=0)


class TestTheShippedA10G:
    """The figures that RAGCache publishes of a 7B model, with 32 tokens of question behind 4,000 of documents."""

    device = DeviceProfile.shipped("a10g-7b")

    def test_four_thousand_new_tokens_take_about_a_second(self):
        assert self.device.prefill_seconds(0, 4000) == pytest.approx(1.0, rel=0.005)

    def test_a_cached_prefix_is_eleven_and_a_half_times_cheaper(self):
        whole, hit = self.device.prefill_seconds(0, 4032), self.device.prefill_seconds(4000, 32)
        assert whole / hit == pytest.approx(11.5, rel=0.005)

    def test_a_prefix_loaded_from_the_host_is_almost_four_times_cheaper(self):
        hit = self.device.load_seconds(4000, Tier.HOST) + self.device.prefill_seconds(4000, 32)
        assert self.device.prefill_seconds(0, 4032) / hit == pytest.approx(3.9, rel=0.005)

    def test_its_transfers_are_within_the_bus_bandwidth(self):
        assert 8e9 < self.device.host_bytes_per_s < 32e9

    def test_its_points_match_the_formula_of_its_source(self):
        grid = self.device.grid
        for cached, row in zip(grid.cached, grid.points, strict=True):
            expected = [0.0798 + 213e-6 * new + 8.6e-9 * new * (cached + new / 2) for new in grid.new]
            assert list(row) == pytest.approx(expected, abs=1e-6)
        assert "0.0798 + 213e-6 n + 8.6e-9 n (c + n / 2)" in self.device.source

    def test_its_interpolation_is_within_two_percent_of_the_formula(self):
        for cached in range(0, 32768, 1111):
            for new in range(1, 32768, 777):
                expected = 0.0798 + 213e-6 * new + 8.6e-9 * new * (cached + new / 2)
                assert self.device.prefill_seconds(cached, new) == pytest.approx(expected, rel=0.02)
