"""The GPU benchmark without a GPU: a rehearsal on the CPU, what happens when a system fails, budget, verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from bench import gpu, gpu_launches, gpu_run, workloads
from bench.gpu_cases import EDGES_OF_LARGE, GRAPHS, MODELS, ORDER, Pair, Plain, result_of
from bench.gpu_measure import Clock, kernels
from bench.gpu_report import TARGETS, against, bandwidth, slower_mode, tables, verdicts
from bench.gpu_run import Budget, Process, Run, chosen
from bench.gpu_sparse import both_ways
from bench.gpu_worker import Bench
from bench.graphs import FEATURES, Workload
from bench.turns import PlayerLost
from graphweave.data import rmat
from graphweave.execute import triton_launch
from graphweave.execute.triton_launch import TritonJob
from graphweave.runtime.triton_kernel import Launch, TritonKernel
from tests.loop_support import spmm

GCN = Pair("gcn", "cora")


class Here:
    """A worker that runs in this process."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench(torch.device("cpu"), torch.float32, small=True, folder=folder)
        self.handlers = self.bench.handlers()

    def ask_within(self, seconds: float, do: str, **given: Any) -> Any:
        return self.handlers[do](**given)

    def close(self) -> None:
        self.bench.forget()


class Scripted:
    """A worker whose answers are made up; `script(do, given)` may raise PlayerLost."""

    def __init__(self, script: Callable[[str, dict[str, Any]], Any]) -> None:
        self.script = script
        self.closed = False

    def ask_within(self, seconds: float, do: str, **given: Any) -> Any:
        assert not self.closed
        found = self.script(do, given)
        if found is not None:
            return found
        plain = {"hello": {"copy": {"bytes_per_second": 100.0}}, "first": {"status": "ok", "first": 1.0}, "turn": 0.5}
        return plain.get(do, {})

    def close(self) -> None:
        self.closed = True


def new_record() -> dict[str, Any]:
    return {"settings": {"device": "cpu", "small": True, "dtype": "float32"}, "cases": {}, "targets": []}


def run_with(start: Callable[[], Any], cases: Any, out: Path | None = None, **options: Any) -> dict[str, Any]:
    record = new_record()
    Run(start, options.pop("budget", Budget(1e6)), record, out, repeats=2, **options).go(cases)
    return record


# ---------------------------------------------------------------- rehearsals


@pytest.fixture
def no_inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(model: Any) -> Any:
        def broken(*args: Any) -> Any:
            raise ValueError("an injected failure")

        return broken

    monkeypatch.setitem(workloads.COMPILERS, "inductor", refuse)
    yield


def test_a_rehearsal_records_everything_and_a_failure_ends_one_system(
    tmp_path: Path, no_inductor: None, fresh_compiler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "gpu.json"
    cases = chosen(ORDER, ["sage"], ["cora"], gpu.SYSTEMS)
    run_with(lambda: Here(tmp_path), cases, out)
    record = json.loads(out.read_text())
    case = record["cases"]["sage cora"]
    assert case["status"] == "ok"
    assert case["graph"] == {"nodes": 27, "edges": 105, "input_bytes": 27 * FEATURES * 4 + 2 * 105 * 8 + 27 * 8}
    assert record["device"]["copy"]["bytes_per_second"] > 0
    for mode in ("train", "infer"):
        systems = case["modes"][mode]
        assert list(systems) == ["eager", "inductor", "sparse", "graphweave"]
        broken = systems.pop("inductor")
        assert broken["status"] == "failed: ValueError: an injected failure"
        assert "in broken" in broken["traceback"] and "median" not in broken
        for one in systems.values():
            assert one["status"] == "ok" and one["error"] < 1e-4
            assert 0 < one["median"] < one["first"] + 1 and one["repeats"] == 2
            assert "peak_bytes" not in one  # a CPU's memory is not measured
        own = systems["graphweave"]
        assert own["launches"] == own["step_counters"]["kernel_launches"] > 0
        assert len(own["bandwidth"]["kernels"]) == own["launches"]
        assert all(one["seconds"] > 0 and one["gather_bytes"] > 0 for one in own["bandwidth"]["kernels"])
    (cora,) = (one for one in record["targets"] if one["target"].startswith("Cora"))
    assert cora["cases"]["sage cora"]["verdict"] == cora["verdict"] != "not measured"
    tables(record)
    assert "sage cora" in capsys.readouterr().out


@pytest.mark.slow
def test_typed_layers_of_pyg_are_checked_against_the_reference(tmp_path: Path) -> None:
    cases = chosen(ORDER, ["rgat"], ["aifb"], ["eager"])
    case = run_with(lambda: Here(tmp_path), cases)["cases"]["rgat aifb"]
    assert set(case["references"]) == {"own", "other function"}
    for systems in case["modes"].values():
        assert {name: one["status"] for name, one in systems.items()} == {"pyg-rgat": "ok", "pyg-hetero": "ok"}
        assert systems["pyg-hetero"]["other_function"] and systems["pyg-rgat"]["error"] < 1e-4


@pytest.mark.slow
def test_without_a_reference_eager_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_inductor: None) -> None:
    def short_of_memory(self: Plain, *, within: bool) -> Any:
        raise torch.OutOfMemoryError("no room for float64")

    monkeypatch.setattr(Plain, "want", short_of_memory)
    monkeypatch.setitem(workloads.COMPILERS, "graphweave", lambda model: lambda *given: 2 * model(*given))
    case = run_with(lambda: Here(tmp_path), [(GCN, ("eager", "sparse", "graphweave"))])["cases"][GCN.name]
    assert case["references"]["own"]["out_of_memory"]
    systems = case["modes"]["infer"]
    assert systems["eager"]["reference"] == "this, in torch.float32"
    assert systems["sparse"]["status"] == "ok"
    assert systems["graphweave"]["status"] == "ran eagerly: no kernel was called"
    assert systems["graphweave"]["error"] == pytest.approx(0.5, abs=0.51)  # twice what it should be


@pytest.mark.slow
def test_a_wrong_system_is_timed_and_called_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workloads.COMPILERS, "inductor", lambda model: lambda *given: 1.01 * model(*given))
    case = run_with(lambda: Here(tmp_path), [(GCN, ("eager", "inductor"))])["cases"][GCN.name]
    one = case["modes"]["infer"]["inductor"]
    assert one["status"].startswith("wrong: output[0] is off by 1.0e-02") and one["median"] > 0
    assert against(case, "infer", "inductor").value is None


@pytest.mark.slow
def test_the_worker_is_a_process(tmp_path: Path) -> None:
    worker = Process(["--device", "cpu", "--dtype", "float32", "--small", "--folder", str(tmp_path)])
    try:
        found = worker.ask_within(120, "case", model="gcn", graph="cora")
        assert found["nodes"] == 27
        failed = worker.ask_within(120, "turn", system="eager", mode="train", steps=1)["failed"]
        assert failed["status"] == "KeyError: 'eager'" and not failed["lost"]
        with pytest.raises(PlayerLost, match="no answer"):
            worker.ask_within(0, "hello")
    finally:
        worker.close()


def test_without_a_gpu_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "gpu.json")]) == 2
    assert "--device cpu --small" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_writes_its_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "Process", lambda given: Here(Path(given[given.index("--folder") + 1])))
    asked = ["--device", "cpu", "--small", "--models", "gcn", "--graphs", "cora", "--systems", "eager", "sparse"]
    assert gpu.main([*asked, "--repeats", "2", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["status"] == "ok" and record["settings"]["small"] and record["seconds"] > 0
    assert torch.__version__.startswith(record["machine"]["versions"]["torch"])  # a build may add its own part
    assert record["device"]["allow_tf32_matmul"] is False and record["device"]["versions"]["numpy"]
    assert list(record["cases"]) == ["gcn cora"]
    assert "gcn cora" in capsys.readouterr().out


# ---------------------------------------------------------------- failures


def test_a_system_that_takes_the_process_with_it_is_left_out_of_the_next_attempt() -> None:
    started: list[Scripted] = []

    def script(do: str, given: dict[str, Any]) -> Any:
        if do == "first" and given["system"] == "inductor" and given["mode"] == "infer":
            raise PlayerLost("killed by signal 11\nfirst line\nlast line")
        return None

    def start() -> Scripted:
        started.append(Scripted(script))
        return started[-1]

    case = run_with(start, [(GCN, ("eager", "inductor", "graphweave"))])["cases"][GCN.name]
    assert len(started) == 2 and all(one.closed for one in started)
    assert case["status"] == "ok"
    for systems in case["modes"].values():
        assert systems["inductor"]["status"] == "failed: killed by signal 11"
        assert systems["inductor"]["traceback"] == "first line\nlast line"
        assert systems["eager"]["median"] == systems["graphweave"]["median"] == 0.5


def test_a_device_lost_in_a_timed_step_is_the_fault_of_its_system() -> None:
    def script(do: str, given: dict[str, Any]) -> Any:
        if do == "turn" and given["system"] == "graphweave":
            return {"failed": {"status": "CUDA error: illegal address", "traceback": "", "lost": True}}
        return None

    case = run_with(lambda: Scripted(script), [(GCN, ("eager", "graphweave"))])["cases"][GCN.name]
    assert case["modes"]["train"]["graphweave"]["status"] == "failed: CUDA error: illegal address"
    assert case["modes"]["train"]["eager"]["median"] == 0.5


def test_a_system_that_runs_out_of_memory_while_timed_keeps_its_reason() -> None:
    def script(do: str, given: dict[str, Any]) -> Any:
        if do == "turn" and given["system"] == "eager":
            return {"failed": {"status": "OutOfMemoryError: 80 GiB", "traceback": "", "lost": False}}
        return None

    case = run_with(lambda: Scripted(script), [(GCN, ("eager", "graphweave"))])["cases"][GCN.name]
    assert case["modes"]["train"]["eager"]["status"] == "failed: OutOfMemoryError: 80 GiB"
    assert case["modes"]["train"]["graphweave"]["median"] == 0.5


def test_a_graph_that_cannot_be_made_ends_its_case_alone() -> None:
    def script(do: str, given: dict[str, Any]) -> Any:
        if do == "case" and given["graph"] == "cora":
            return {"failed": {"status": "no such graph", "traceback": "where", "lost": False}}
        return None

    cases = [(GCN, ("eager",)), (Pair("gcn", "ppi"), ("eager",))]
    found = run_with(lambda: Scripted(script), cases)["cases"]
    assert found["gcn cora"]["status"] == "failed: no such graph" and found["gcn cora"]["traceback"] == "where"
    assert found["gcn ppi"]["status"] == "ok"


def test_each_answer_is_on_disk_before_the_next_question(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    seen: list[list[str]] = []

    def script(do: str, given: dict[str, Any]) -> Any:
        if do == "first" and out.exists():
            seen.append(list(json.loads(out.read_text())["cases"][GCN.name]["modes"][given["mode"]]))
        return None

    run_with(lambda: Scripted(script), [(GCN, ("eager", "sparse", "graphweave"))], out)
    assert ["eager"] in seen and ["eager", "sparse"] in seen
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.json"]


# ---------------------------------------------------------------- the budget


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_case_that_does_not_fit_is_skipped_and_a_smaller_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time()
    guesses = {"first": 100.0, "large": 100.0, "small": 10.0}
    monkeypatch.setattr(gpu_run, "guess", lambda pair, systems: guesses[pair.model])

    def script(do: str, given: dict[str, Any]) -> Any:
        clock.now += 60.0 if do == "case" and given["model"] == "first" else 0.0
        return None

    cases: Any = [(Pair(name, "cora"), ("eager",)) for name in guesses]
    found = run_with(lambda: Scripted(script), cases, budget=Budget(110.0, clock))["cases"]
    assert found["first cora"]["status"] == "ok" and found["first cora"]["seconds"] == 60.0
    assert found["large cora"] == {"status": "skipped: would take about 60 s, 50 s are left", "guess": 60.0}
    assert found["small cora"]["status"] == "ok"
    assert "modes" not in found["large cora"]


def test_the_pace_follows_what_cases_took_within_bounds() -> None:
    clock = Time()
    budget = Budget(100.0, clock)
    assert budget.refusal(100.0) is None and budget.refusal(101.0) is not None
    budget.spent(10.0, 30.0)
    assert budget.pace == 3.0 and budget.refusal(34.0) is not None
    budget.spent(10.0, 1e6)
    assert budget.pace == gpu_run.PACE_LIMITS[1]
    fast = Budget(100.0, clock)
    fast.spent(10.0, 0.0)
    assert fast.pace == gpu_run.PACE_LIMITS[0]


def test_a_case_is_cut_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time()
    allowed: list[float] = []
    monkeypatch.setattr(gpu_run, "guess", lambda pair, systems: 1.0)

    class Slow(Scripted):
        def ask_within(self, seconds: float, do: str, **given: Any) -> Any:
            if do == "first" and given["system"] == "inductor":
                allowed.append(seconds)
                clock.now += seconds
                raise PlayerLost(f"no answer to 'first' within {seconds:.0f} s")
            return super().ask_within(seconds, do, **given)

    cases: Any = [(GCN, ("eager", "inductor")), (Pair("gcn", "ppi"), ("eager",))]
    found = run_with(lambda: Slow(lambda do, given: None), cases, budget=Budget(50.0, clock))["cases"]
    assert allowed == [50.0 + gpu_run.GRACE_SECONDS]
    assert found["gcn cora"]["status"] == "failed: no answer to 'first' within 65 s"
    assert found["gcn cora"]["modes"]["train"]["eager"]["first"] == 1.0
    assert found["gcn ppi"]["status"].startswith("skipped")


# ---------------------------------------------------------------- numbers


def entry(**fields: Any) -> dict[str, Any]:
    return {"status": "ok", "first": 1.0, **fields}


def case_of(train: dict[str, Any], infer: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"status": "ok", "modes": {"train": train, "infer": infer or train}}


def kernel(seconds: float, gather: int, compulsory: int) -> dict[str, Any]:
    return {"seconds": seconds, "gather_bytes": gather, "compulsory_bytes": compulsory}


def test_the_fraction_of_a_copy_is_all_bytes_over_all_seconds() -> None:
    found = bandwidth({"kernels": [kernel(1.0, 300, 100), kernel(3.0, 500, 300)]}, copy=400.0)
    assert found is not None
    assert found["gather_fraction"] == 0.5 and found["compulsory_fraction"] == 0.25
    assert found["kernels"] == 2 and found["seconds"] == 4.0
    assert bandwidth({"kernels": []}, 400.0) is None and bandwidth(None, 400.0) is None


def verdict_of(name: str, cases: dict[str, Any]) -> dict[str, Any]:
    record = {"device": {"copy": {"bytes_per_second": 400.0}}, "cases": cases}
    (found,) = (one for one in verdicts(record) if one["target"].startswith(name))
    return found


def test_a_ratio_meets_its_target_or_misses_it() -> None:
    met = case_of({"eager": entry(median=0.4), "graphweave": entry(median=0.1)})
    missed = case_of({"eager": entry(median=0.39), "graphweave": entry(median=0.1)})
    assert verdict_of("GAT training, eager", {"gat8 arxiv": met})["verdict"] == "met"
    both = verdict_of("GAT training, eager", {"gat8 arxiv": met, "gat1 reddit": missed, "gat1 cora": missed})
    assert both["verdict"] == "missed"
    assert {name: one["verdict"] for name, one in both["cases"].items()} == {
        "gat8 arxiv": "met",
        "gat1 reddit": "missed",
    }
    assert both["cases"]["gat8 arxiv"]["value"] == pytest.approx(4.0)


@pytest.mark.parametrize("status", ["wrong: output[0] is off by 1", "ran eagerly: why", "failed: RuntimeError"])
def test_a_graphweave_that_is_not_right_misses(status: str) -> None:
    own = {"status": status, "first": 1.0, "median": 1e-9, "launches": 1}
    case = case_of({"eager": entry(median=1.0, peak_bytes=10), "graphweave": own})
    for target in TARGETS:
        assert target.judge(case, 400.0)["verdict"] == "missed"


def test_what_was_skipped_or_has_no_peer_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = {"status": "skipped: would take about 60 s, 50 s are left", "guess": 60.0}
    alone = case_of({"eager": {"status": "failed: OutOfMemoryError"}, "graphweave": entry(median=0.1)})
    found = verdict_of("GAT training, eager", {"gat8 arxiv": skipped, "gat1 arxiv": alone})
    record = {**new_record(), "cases": {"gat8 arxiv": skipped, "gat1 arxiv": alone}, "targets": [found]}
    tables(record)
    printed = capsys.readouterr().out
    assert f"gat8 arxiv: {skipped['status']}" in printed and "OutOfMemoryError" in printed
    assert found["verdict"] == "not measured"
    assert found["cases"]["gat8 arxiv"]["why"] == skipped["status"]
    assert "OutOfMemoryError" in found["cases"]["gat1 arxiv"]["why"]


def test_the_fastest_right_form_of_pyg_counts_and_another_function_only_where_it_is_alone() -> None:
    forms = {"pyg-rgat": entry(median=0.7), "pyg-hetero": entry(median=0.1, other_function=True)}
    own = {"graphweave": entry(median=0.1)}
    assert against(case_of({**forms, **own}), "train", "eager").value == pytest.approx(7.0)
    forms["pyg-rgat"]["status"] = "failed: OutOfMemoryError"
    assert against(case_of({**forms, **own}), "train", "eager").value == pytest.approx(1.0)
    fast = {"pyg-rgcn": entry(median=0.9), "pyg-fast-rgcn": entry(median=0.6), **own}
    assert against(case_of(fast), "train", "eager").value == pytest.approx(6.0)


def test_memory_and_cora_targets() -> None:
    half = case_of(
        {"eager": entry(median=1.0, peak_bytes=1000), "graphweave": entry(median=1.0, peak_bytes=200)},
        {"eager": entry(median=0.9), "graphweave": entry(median=1.0)},
    )
    assert verdict_of("peak memory", {"gat8 arxiv": half})["cases"]["gat8 arxiv"]["value"] == pytest.approx(0.2)
    assert verdict_of("peak memory", {"gat8 arxiv": half})["verdict"] == "met"
    assert slower_mode(half).value == pytest.approx(0.9)
    assert verdict_of("Cora", {"gcn cora": half})["verdict"] == "missed"
    of_copy = case_of({"graphweave": entry(median=1.0, bandwidth={"kernels": [kernel(1.0, 240, 100)]})})
    assert verdict_of("fused kernels", {"gcn arxiv": of_copy})["verdict"] == "met"


# ---------------------------------------------------------------- parts


def test_every_model_and_graph_has_a_case_and_large_graphs_are_large() -> None:
    assert {pair.model for pair in ORDER} == set(MODELS) and {pair.graph for pair in ORDER} == set(GRAPHS)
    assert len(set(ORDER)) == len(ORDER)
    assert all(edges >= 1_166_243 for edges in EDGES_OF_LARGE.values())
    only = chosen(ORDER, ["rgcn", "gcn"], ["aifb", "cora"], ["eager"])
    assert dict(only) == {GCN: ("eager",), Pair("rgcn", "aifb"): ("pyg-rgcn", "pyg-fast-rgcn", "pyg-hetero")}


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_torch_sparse_computes_what_pyg_computes(model: str) -> None:
    """The graph has multi-edges, self-loops and a node without edges."""
    index = torch.cat([rmat(30, 90, seed=1), torch.tensor([[3, 3, 5], [3, 3, 3]])], 1)
    x = torch.randn(31, FEATURES, generator=torch.Generator().manual_seed(0))
    plain = Plain(model, Workload(x, index, torch.arange(31)), torch.float64)
    plain._work = plain._work.double()
    for mode in ("infer", "train"):
        got, want = (result_of(plain.form(system), mode) for system in ("sparse", "eager"))
        torch.testing.assert_close(got.outputs, want.outputs, rtol=1e-6, atol=1e-6)  # its weights are made in float32
        torch.testing.assert_close(got.grads, want.grads, rtol=1e-6, atol=1e-6)
    forward, backward = both_ways(index, torch.ones(index.size(1)), 31, torch.float32)
    torch.testing.assert_close(forward.to_dense(), backward.to_dense().t())
    assert forward.to_dense()[3, 3] >= 2 and forward.col_indices().dtype == torch.int32


class FakeEvent:
    """Device time: a second for each call asked for so far, behind `_sleep`."""

    now = 0.0
    waiting = True

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = FakeEvent.now

    def query(self) -> bool:
        return not FakeEvent.waiting

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def cuda_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    FakeEvent.waiting = True
    for name, fake in {
        "Event": FakeEvent, "synchronize": lambda device: None, "_sleep": lambda cycles: None,
        "memory_allocated": lambda device: 70, "max_memory_allocated": lambda device: 100,
        "reset_peak_memory_stats": lambda device: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    clock = Clock(torch.device("cpu"))
    clock.cuda = True
    return clock


def one_second() -> None:
    FakeEvent.now += 1.0


def test_events_are_seconds_a_step(cuda_clock: Clock) -> None:
    assert cuda_clock.turn(one_second, 4) == 1.0
    assert cuda_clock.peak(one_second) == 100 and cuda_clock.allocated() == 70
    assert not cuda_clock.lost()


def test_a_step_that_waits_for_the_device_is_host_bound(cuda_clock: Clock) -> None:
    assert kernels(cuda_clock, one_second) == {"host_bound": False, "kernels": []}
    FakeEvent.waiting = False
    assert kernels(cuda_clock, one_second)["host_bound"]


def test_peak_memory_is_as_if_a_system_were_alone(tmp_path: Path, cuda_clock: Clock) -> None:
    bench = Bench(torch.device("cpu"), torch.float32, small=True, folder=tmp_path)
    bench._clock = cuda_clock
    inputs = bench.case("gcn", "cora")["input_bytes"]
    form = bench._subject.form("eager") if bench._subject else None
    assert form is not None
    bench._kept["eager"] = 5
    found = bench._peaks("eager", form, "train", before=60)  # 70 now: 10 more are kept; a step takes 30
    assert found == {"kept_bytes": 15, "beyond_inputs": 45, "peak_bytes": 45 + inputs}


def test_launches_in_use_are_among_those_that_are_tried() -> None:
    used = triton_launch.EDGES_AT_ONCE, triton_launch.ROW_ELEMENTS, triton_launch.ROW_WARPS
    assert used in gpu_launches.CONSTANTS["rows"]
    assert (triton_launch.PIECE_ELEMENTS, triton_launch.PIECE_WARPS) in gpu_launches.CONSTANTS["pieces"]


def test_constants_are_ranked_by_the_time_of_their_launches() -> None:
    """(4, 1024, 1) means 4 rows of 4 edges for 64 lanes, (16, 2048, 4) 2 rows of 16 edges."""
    kernel = spmm(64)
    indptr = torch.zeros(1, dtype=torch.int32)
    job = TritonJob(kernel, cast(TritonKernel, None), {}, indptr, 0, 100, Launch(2, 16))
    one = gpu_launches.Recorded(job, "gcn arxiv")
    assert one.kind == "rows" and {Launch(2, 16), Launch(4, 4, 1)} <= set(one.variants())
    one.times.update((how, 2.0) for how in one.variants())
    one.times[Launch(4, 4, 1)] = 1.0
    assert gpu_launches.ranked([one])["rows"][0] == (1.0, (4, 1024, 1))
