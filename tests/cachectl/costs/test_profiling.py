"""Engines are profiled once, in spite of noise, and their profiles are stored."""

import asyncio
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachectl.costs.device_profile import DeviceProfile
from cachectl.costs.prefill_grid import PrefillGrid
from cachectl.costs.profiling import load_or_measure, profile, quick_axes
from protocol.errors import ConfigError, EngineDied, InvalidRequest
from protocol.generation import EngineInfo, PrefillCost, StepBudget
from protocol.kv import KvMemory
from protocol.tiers import Tier

# A busy machine must not fail a test.
UNHURRIED = settings(deadline=None)


def _true_seconds(cached: int, new: int) -> float:
    return 1.0 + 0.5 * new + 0.25 * new * cached


class _Engine:
    """An engine with given noise that takes prompts up to a given length, and ``slower`` times as long."""

    def __init__(
        self, noise: dict[tuple[int, int], list[float]] | None = None, longest: int = 10**9, slower: float = 1.0
    ) -> None:
        self._noise = noise or {}
        self._longest = longest
        self._slower = slower
        self.probed: list[tuple[int, int]] = []
        self.running = 0

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        pair = (cached_tokens, new_tokens)
        self.running += 1
        try:
            await asyncio.sleep(0)
            self.probed.append(pair)
            if sum(pair) > self._longest:
                raise InvalidRequest("too long")
            disturbances = self._noise.get(pair, [])
            disturbance = disturbances.pop(0) if disturbances else 0.0
            return PrefillCost(*pair, _true_seconds(*pair) * self._slower + disturbance)
        finally:
            self.running -= 1


def _quiet(_done: int, _total: int) -> None:
    """Ignore progress."""


def _never_falls(grid: PrefillGrid) -> bool:
    rows = all(before <= after for row in grid.points for before, after in pairwise(row))
    columns = all(before <= after for column in zip(*grid.points, strict=True) for before, after in pairwise(column))
    return rows and columns


class TestProfiling:
    async def test_a_grid_has_the_engines_times(self):
        grid = await profile(_Engine(), (0, 8), (2, 4, 8), 1, _quiet)
        assert (grid.cached, grid.new) == ((0, 8), (2, 4, 8))
        assert grid.points == ((2.0, 3.0, 5.0), (6.0, 11.0, 21.0))

    async def test_one_quiet_probe_of_three_is_enough(self):
        noise = {(0, 2): [50.0], (8, 4): [0.0, 70.0], (8, 8): [20.0, 30.0]}
        assert await profile(_Engine(noise), (0, 8), (2, 4, 8), 3, _quiet) == await profile(
            _Engine(), (0, 8), (2, 4, 8), 1, _quiet
        )

    async def test_every_pair_is_probed_once_before_any_is_probed_again(self):
        engine = _Engine()
        await profile(engine, (0, 8), (2, 4), 3, _quiet)
        assert engine.probed == [(0, 2), (0, 4), (8, 2), (8, 4)] * 3

    async def test_progress_counts_to_the_end(self):
        heard = []
        await profile(_Engine(), (0, 8), (2, 4), 2, lambda done, total: heard.append((done, total)))
        assert heard == [(done, 8) for done in range(1, 9)]

    async def test_falling_times_are_replaced_by_their_mean(self):
        # 3 s at 4 new tokens is read as 6 s, above the 5 s at 8.
        grid = await profile(_Engine({(0, 4): [3.0]}), (0, 8), (2, 4, 8), 1, _quiet)
        assert grid.points == ((2.0, 5.5, 5.5), (6.0, 11.0, 21.0))

    @UNHURRIED
    @given(noise=st.lists(st.floats(-1.9, 20), min_size=16, max_size=16))
    def test_times_never_fall_and_move_no_more_than_the_noise(self, noise):
        cached, new = (0, 1, 2, 3), (2, 3, 4, 5)
        pairs = [(c, n) for c in cached for n in new]
        engine = _Engine({pair: [disturbance] for pair, disturbance in zip(pairs, noise, strict=True)})
        grid = asyncio.run(profile(engine, cached, new, 1, _quiet))
        assert _never_falls(grid)
        loudest = max(abs(disturbance) for disturbance in noise)
        for c, n in pairs:
            assert abs(grid.seconds(c, n) - _true_seconds(c, n)) <= loudest + 1e-9

    async def test_points_of_refused_prompts_continue_their_neighbours(self):
        engine = _Engine(longest=12)
        heard = []
        grid = await profile(engine, (0, 4, 8), (2, 4, 8), 2, lambda done, total: heard.append((done, total)))
        # (8, 8) is too long; its neighbours rise by 4 s from 4 to 8 cached, and by 10 s from 4 to 8 new.
        assert grid.points == ((2.0, 3.0, 5.0), (4.0, 7.0, 13.0), (6.0, 11.0, 17.0))
        assert engine.probed.count((8, 8)) == 1
        assert heard[-1] == (16, 16)

    async def test_progress_ends_when_prompts_are_refused(self):
        heard = []
        await profile(_Engine(longest=12), (0, 8), (2, 8), 1, lambda done, total: heard.append((done, total)))
        assert heard == [(1, 4), (2, 4), (3, 4), (3, 3)]

    async def test_nothing_longer_is_probed_after_the_first_refusal(self):
        engine = _Engine(longest=5)
        await profile(engine, (0, 2, 4, 8), (1, 2, 4, 8), 1, _quiet)
        assert max(sum(pair) for pair in engine.probed) == 6
        assert sum(sum(pair) > 5 for pair in engine.probed) == 1

    async def test_a_length_that_never_fits_is_left_out(self):
        grid = await profile(_Engine(longest=10), (0, 4, 20), (2, 4, 30), 1, _quiet)
        assert (grid.cached, grid.new) == ((0, 4), (2, 4))

    async def test_rounding_makes_no_refused_prompt_cheaper_than_a_shorter_one(self):
        class Fixed(_Engine):
            async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
                await super().probe_prefill(cached_tokens, new_tokens)
                return PrefillCost(cached_tokens, new_tokens, 0.9 if cached_tokens else 0.2)

        grid = await profile(Fixed(longest=12), (0, 8), (2, 8), 1, _quiet)
        assert 0.2 + (0.9 - 0.2) < 0.9
        assert grid.points == ((0.2, 0.2), (0.9, 0.9))

    @UNHURRIED
    @given(longest=st.integers(3, 60), noise=st.lists(st.floats(-1.4, 9), min_size=20, max_size=20))
    def test_refused_prompts_never_make_time_fall(self, longest, noise):
        cached, new = (0, 1, 4, 11, 23), (1, 2, 7, 30)
        pairs = [(c, n) for c in cached for n in new]
        engine = _Engine({pair: [bit] for pair, bit in zip(pairs, noise, strict=True)}, longest)
        assert _never_falls(asyncio.run(profile(engine, cached, new, 1, _quiet)))

    @pytest.mark.parametrize("longest", [1, 2, 3])
    async def test_an_engine_too_short_for_the_axes_is_refused(self, longest):
        with pytest.raises(ConfigError, match="too few lengths") as refused:
            await profile(_Engine(longest=longest), (0, 4), (2, 4), 1, _quiet)
        assert isinstance(refused.value.__cause__, InvalidRequest)

    async def test_no_further_round_begins_once_the_time_is_up(self):
        seen = []
        await profile(_Engine(), (0, 16), (32, 64), 3, lambda done, total: seen.append(done), within_s=0.0)
        assert seen == [1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("cached", "new", "repeats", "why"),
        [
            ((0,), (1, 2), 1, "cached"),
            ((0, 1), (2, 1), 1, "new"),
            ((0, 1), (0, 1), 1, "0 new tokens"),
            ((0, 1), (1, 2), 0, "repeats must be at least 1"),
        ],
    )
    async def test_bad_axes_are_refused_before_anything_is_measured(self, cached, new, repeats, why):
        engine = _Engine()
        with pytest.raises(ConfigError, match=why):
            await profile(engine, cached, new, repeats, _quiet)
        assert engine.probed == []

    async def test_errors_of_the_engine_propagate(self):
        class Dying(_Engine):
            async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
                raise EngineDied("gone")

        with pytest.raises(EngineDied):
            await profile(Dying(), (0, 1), (1, 2), 1, _quiet)

    async def test_cancelling_ends_the_running_probe_and_starts_no_other(self):
        begun = asyncio.Event()

        class Stuck(_Engine):
            async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
                self.running += 1
                try:
                    if len(self.probed) == 2:
                        begun.set()
                        await asyncio.Event().wait()
                    return await super().probe_prefill(cached_tokens, new_tokens)
                finally:
                    self.running -= 1

        engine, heard = Stuck(), []
        tasks_before = asyncio.all_tasks()
        task = asyncio.create_task(profile(engine, (0, 1), (1, 2), 2, lambda done, _total: heard.append(done)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (engine.running, len(engine.probed), heard) == (0, 2, [1, 2])
        assert asyncio.all_tasks() == tasks_before


MEMORY = KvMemory(
    fingerprint="model",
    boot="first",
    page_tokens=16,
    page_bytes=16_000,
    gpu_pages=9,
    host_pages=9,
    disk_pages=9,
    host_bytes_per_s=1e9,
    disk_bytes_per_s=1e8,
)


INFO = EngineInfo("model", "vllm", 4096)


class TestLoadOrMeasure:
    async def test_an_engine_is_measured_once_and_its_profile_stored(self, tmp_path):
        folder, engine, heard = tmp_path / "profiles", _Engine(), []
        measured = await load_or_measure(engine, MEMORY, INFO, folder, lambda done, total: heard.append((done, total)))
        assert (measured.name, measured.kv_bytes_per_token) == ("model", 1000)
        assert measured.prefill_seconds(1024, 256) == _true_seconds(1024, 256)
        assert heard[-1] == (12, 12)
        heard.clear()
        engine.probed.clear()
        assert (
            await load_or_measure(engine, MEMORY, INFO, folder, lambda done, total: heard.append((done, total)))
            == measured
        )
        assert (engine.probed, heard) == ([(0, 256)], [])
        assert DeviceProfile.load(folder / "model.json") == measured

    async def test_controllers_that_start_together_do_not_measure_at_once(self, tmp_path):
        engine = _Engine()
        first, second = await asyncio.gather(
            *(load_or_measure(engine, MEMORY, INFO, tmp_path, _quiet) for _ in range(2))
        )
        assert first == second
        # The second one only checks what the first one has stored.
        assert engine.probed[-1] == (0, 256)
        assert len(engine.probed) == len(set(engine.probed)) * 2 + 1

    async def test_a_folder_that_cannot_be_written_hinders_nobody(self, tmp_path):
        blocked = tmp_path / "a file"
        blocked.touch()
        measured = await load_or_measure(_Engine(), MEMORY, INFO, blocked, _quiet)
        assert measured.prefill_seconds(0, 256) == _true_seconds(0, 256)

    async def test_a_profile_of_a_slower_machine_is_measured_again(self, tmp_path):
        await load_or_measure(_Engine(slower=2.0), MEMORY, INFO, tmp_path, _quiet)
        measured = await load_or_measure(_Engine(), MEMORY, INFO, tmp_path, _quiet)
        assert measured.prefill_seconds(0, 256) == _true_seconds(0, 256)
        assert DeviceProfile.load(tmp_path / "model.json") == measured

    async def test_one_disturbed_probe_does_not_contradict_a_profile(self, tmp_path):
        await load_or_measure(_Engine(), MEMORY, INFO, tmp_path, _quiet)
        engine = _Engine({(0, 256): [1000.0]})
        await load_or_measure(engine, MEMORY, INFO, tmp_path, _quiet)
        assert engine.probed == [(0, 256)] * 2

    async def test_a_start_beside_other_work_gives_the_same_profile(self, tmp_path):
        disturbed = _Engine({(0, 32): [500.0], (1024, 256): [900.0]})
        measured = await load_or_measure(disturbed, MEMORY, INFO, tmp_path, _quiet)
        assert measured == await load_or_measure(_Engine(), MEMORY, INFO, tmp_path / "quiet", _quiet)

    async def test_another_fingerprint_is_measured_separately(self, tmp_path):
        await load_or_measure(_Engine(), MEMORY, INFO, tmp_path, _quiet)
        engine = _Engine()
        await load_or_measure(engine, msgspec.structs.replace(MEMORY, fingerprint="other"), INFO, tmp_path, _quiet)
        assert engine.probed

    async def test_other_steps_are_measured_separately(self, tmp_path):
        for step in (None, StepBudget(640, 512), StepBudget(2048, 2048)):
            engine, info = _Engine(), msgspec.structs.replace(INFO, step=step)
            await load_or_measure(engine, MEMORY, info, tmp_path, _quiet)
            assert engine.probed

    async def test_rates_are_the_current_ones(self, tmp_path):
        await load_or_measure(_Engine(), MEMORY, INFO, tmp_path, _quiet)
        faster = msgspec.structs.replace(MEMORY, host_bytes_per_s=4e9, disk_bytes_per_s=2e9)
        profile = await load_or_measure(_Engine(), faster, INFO, tmp_path, _quiet)
        assert (profile.host_bytes_per_s, profile.disk_bytes_per_s) == (4e9, 2e9)

    async def test_loading_from_a_missing_tier_is_never_worth_it(self, tmp_path):
        bare = msgspec.structs.replace(MEMORY, host_bytes_per_s=0.0, disk_bytes_per_s=0.0)
        profile = await load_or_measure(_Engine(), bare, INFO, tmp_path, _quiet)
        assert profile.load_seconds(1, Tier.HOST) > profile.prefill_seconds(0, 1)

    @pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff"])
    async def test_a_broken_file_is_measured_again_and_replaced(self, tmp_path, content):
        (tmp_path / "model.json").write_bytes(content)
        measured = await load_or_measure(_Engine(), MEMORY, INFO, tmp_path, _quiet)
        assert DeviceProfile.load(tmp_path / "model.json") == measured

    async def test_a_folder_that_cannot_be_written_is_tolerated(self, tmp_path):
        (tmp_path / "file").touch()
        assert await load_or_measure(_Engine(), MEMORY, INFO, tmp_path / "file", _quiet)

    async def test_a_slow_engine_is_measured_in_ten_seconds(self):
        cached, new = quick_axes(32_768)
        # At 1 ms per token. Cached tokens are computed first.
        assert sum(c + n for c in cached for n in new) / 1000 < 10.5

    @pytest.mark.parametrize("max_model_len", [65, 100, 500, 1000, 2048, 32_768])
    async def test_lengths_fit_the_context(self, max_model_len):
        cached, new = quick_axes(max_model_len)
        assert (cached[0], new[0]) == (0, 32)
        assert len(cached) > 1
        assert len(new) > 1
        assert cached[-1] + new[0] < max_model_len
        assert new[-1] < max_model_len

    @pytest.mark.parametrize("max_model_len", [64, 1, 0, -1])
    def test_no_lengths_fit_a_context_that_is_too_short(self, max_model_len):
        with pytest.raises(ConfigError, match="too short"):
            quick_axes(max_model_len)

    async def test_a_context_that_is_too_short_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="too short"):
            await load_or_measure(_Engine(), MEMORY, msgspec.structs.replace(INFO, max_model_len=64), tmp_path, _quiet)
        assert not list(tmp_path.glob("*.json"))
