"""Plans of suites: numbers of runs, names, ids and groups."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aspc import tasks
from aspc.data import known_names
from aspc.errors import AspcError
from aspc.lab import suites
from aspc.lab.bench_folder import collect_groups
from aspc.lab.dataset_files import find_dataset_files, load_dataset
from aspc.lab.groups import RunGroup, make_groups
from aspc.lab.paper_tables import tables
from aspc.lab.plan import PlannedRun, make_plan, preset_name, resolve_settings
from aspc.lab.suites.datasets import HANDS, MAZES, STUDY_ANTMAZE, STUDY_HANDS, STUDY_WALKERS

# Runs per suite: variants × datasets × seeds, counted by hand from the paper.
COUNTS = {
    "main_table": 6 * 39 * 4,
    "one_setting": 2 * (12 + 6) * 4 + 2 * 4 * 4,
    "alpha_by_quality": 12 * 4,
    "alpha_by_task": 6 * 4,
    "necessity": 4 * 39 * 4,
    "runtime": 24,
    "k_alpha": 5 * 9 * 4,
    "k_alpha_runtime": 24,
    "robust_critic": 6 * 39 * 4,
    "losses": 4 * 39 * 4,
    "integrations": 6 * 9 * 4,
    "integrations_printed": 6 * 9 * 4,
    "ogbench": 6 * 10 * 4,
    "alpha_curves": 39 * 4,
    "performance_curves": 4 * 39 * 4,
    "aspc_aw": 2 * 18 * 4,
    "l3_forms": 5 * 39 * 4,
    "case_study": 2 * 4,
    "alpha0": 3 * 39 * 4,
    "alpha_lr": 3 * 39 * 4,
    "embedded": 3 * 2,
    "aspc_plus": 3 * 39 * 4,
    "study_main": 9 * 33 * 4,
    "study_ablations": (24 - 4 - 1) * 12 * 4,
    "study_integrations": 8 * 9 * 4,
    "study_time": 3 * 4,
    "maze2d_recipe": 4 * 6 * 4 + 4,
    "study_controls": 5 * (3 + 18) * 4,
}
STUDY_FILES = (*STUDY_WALKERS, *STUDY_ANTMAZE, *STUDY_HANDS)
ALL_FILES = {name: Path(f"/data/{name}.hdf5") for name in STUDY_FILES}


def plan_of(*names: str, **changes):
    return make_plan(suites.expand(names), data=ALL_FILES, **changes)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_and_names(name: str) -> None:
    plan = plan_of(name)
    assert len(plan.runs) == COUNTS[name]
    assert plan.missing_datasets == ()
    known = {*known_names(), *STUDY_FILES}
    for run in plan.runs.values():
        assert run.dataset in known
    # Creating an algorithm checks the names and types of its settings.
    for run in {(r.algo, str(r.settings)): r for r in plan.runs.values()}.values():
        run.algorithm()
        assert run.train_options().steps == run.steps


def test_every_suite_has_a_count() -> None:
    compound = {name for name in suites.names() if suites.get(name).parts}
    own = {name for name in suites.names() if name.startswith("tiny")}
    assert set(suites.names()) - compound - own - {"locomotion"} == set(COUNTS)


def test_suites_match_the_labels_and_datasets_of_the_papers_tables() -> None:
    for name, table in tables().items():
        (block,) = suites.get(name).blocks
        assert {variant.label for variant in block.variants} == set(table.variants)
        if table.rows[0] != "MuJoCo":
            assert set(block.datasets) == set(table.rows)


def test_integrations_as_printed_differ_from_the_public_trainers_in_three_settings() -> None:
    """Appendix D: CQL's penalty (45), Diffusion-QL's normalizer (49) and L2 (43, 47, 51)."""

    def settings(suite: str) -> dict[str, dict[str, object]]:
        found = suites.get(suite).variants
        return {v.column or v.label: resolve_settings(v, "hopper-medium-v2") for v in found}

    public, printed = settings("integrations"), settings("integrations_printed")
    assert list(public) == list(printed) == list(tables()["integrations"].variants)
    assert {name: dict(printed[name].items() - public[name].items()) for name in printed} == {
        "IQL": {},
        "IQL+ASPC": {"l2": "literal"},
        "CQL": {"penalty": "policy"},
        "CQL+ASPC": {"base.penalty": "policy", "l2": "literal"},
        "Diffusion-QL": {"normalize_by": "same"},
        "Diffusion-QL+ASPC": {"base.normalize_by": "same", "l2": "literal"},
    }
    assert all(public[name].items() <= printed[name].items() for name in printed)
    shared = set(plan_of("integrations").runs) & set(plan_of("integrations_printed").runs)
    assert len(shared) == 9 * 4  # IQL without ASPC


def test_iql_on_ogbench_has_the_settings_of_fqls_authors() -> None:
    (iql,) = (variant for variant in suites.get("ogbench").variants if variant.label == "IQL")
    large, giant = (
        resolve_settings(iql, f"antmaze-{size}-navigate-singletask-task2-v0") for size in ("large", "giant")
    )
    assert {name: giant[name] for name in ("beta", "expectile", "discount")} == {
        "beta": 10.0, "expectile": 0.9, "discount": 0.995,
    }  # fmt: skip
    assert "discount" not in large  # 0.99 is the default


def test_suites_share_runs_with_the_main_table() -> None:
    main = set(plan_of("main_table").runs)
    for name in ("alpha_curves", "alpha_by_quality", "alpha_by_task", "performance_curves", "case_study"):
        assert set(plan_of(name).runs) <= main, name
    of_variant = {}
    for entry in plan_of("necessity", "losses", "l3_forms", "alpha0", "alpha_lr", "robust_critic").entries:
        of_variant.setdefault((entry.suite, entry.variant), set()).add(entry.run_id)
    shared = {key for key, ids in of_variant.items() if ids <= main}
    assert shared == {
        ("necessity", "naive"),
        ("necessity", "dynamic"),
        ("losses", "L1+L2+L3"),
        ("l3_forms", "(4)"),
        ("alpha0", "alpha0 = 2.5"),
        ("alpha_lr", "lr = 0.002"),
        ("robust_critic", "TD3+BC with RC"),
        ("robust_critic", "wPC with RC"),
        ("robust_critic", "ASPC with RC"),
    }
    # Timed runs train alone, so they are not shared.
    assert not main & set(plan_of("runtime").runs)
    whole = plan_of("paper")
    assert len(whole.runs) == len({entry.run_id for entry in whole.entries}) < sum(COUNTS.values())


def test_run_ids_depend_on_what_affects_results() -> None:
    run = PlannedRun("aspc", "hopper-medium-v2", 0, 1_000_000)
    # Fixed: published results use this id.
    assert run.run_id == "082e70a1a2dfcf73"
    assert run.run_id in plan_of("main_table").runs
    others = [
        PlannedRun("td3_bc", "hopper-medium-v2", 0, 1_000_000),
        PlannedRun("aspc", "hopper-medium", 0, 1_000_000),
        PlannedRun("aspc", "hopper-medium-v2", 1, 1_000_000),
        PlannedRun("aspc", "hopper-medium-v2", 0, 500_000),
        PlannedRun("aspc_aw", "hopper-medium-v2", 0, 1_000_000),
        PlannedRun("aspc", "hopper-medium-v2", 0, 1_000_000, settings={"k_alpha": 5}),
        PlannedRun("aspc", "hopper-medium-v2", 0, 1_000_000, options={"eval_episodes": 100}),
        PlannedRun("aspc", "hopper-medium-v2", 0, 1_000_000, alone=True),
        PlannedRun("aspc", "hopper-medium-v2", 0, 1_000_000, scale_of="0"),
    ]
    assert len({run.run_id, *(other.run_id for other in others)}) == len(others) + 1
    # Options for logging and checkpoints do not affect the id.
    same = PlannedRun("aspc", "hopper-medium-v2", 0, 1_000_000, options={"checkpoint_every": 1000, "log_every": 500})
    assert same.run_id == run.run_id


def test_presets_are_resolved_per_dataset() -> None:
    plan = plan_of("main_table", only=["IQL", "hopper-medium-v2", "halfcheetah-expert-v2"])
    settings = {run.dataset: run.settings for run in plan.runs.values()}
    assert settings["hopper-medium-v2"]["deterministic"] is True
    assert settings["halfcheetah-expert-v2"]["beta"] == 6.0
    assert preset_name("hopper-medium") == "hopper-medium-v2"
    assert preset_name("maze2d-umaze?steps=10") == "maze2d-umaze-v1"
    # With and without ASPC differ only in the scale.
    plan = plan_of("integrations", only=["IQL*", "hopper-medium-expert-v2"], seeds=1)
    (without,) = [run.settings for run in plan.runs.values() if run.algo == "iql"]
    (with_aspc,) = [run.settings for run in plan.runs.values() if run.algo == "iql+aspc"]
    assert without.pop("beta") == 6.0
    assert {f"base.{name}": value for name, value in without.items()} == with_aspc


def test_needed_runs_are_planned_too() -> None:
    plan = plan_of("necessity", only=["converged", "hopper-medium-v2"], seeds=1)
    first, second = plan.runs.values()
    assert second.scale_of == first.run_id
    assert [(e.variant, e.run_id) for e in plan.entries] == [("converged", second.run_id), ("dynamic", first.run_id)]


def test_steps_seeds_and_evaluations_can_be_overridden() -> None:
    plan = plan_of("main_table", steps=20_000, seeds=2, only=["ASPC", "hopper-*"])
    assert len(plan.runs) == 2 * 6
    assert {run.train_options().eval_every for run in plan.runs.values()} == {2_000}
    plan = plan_of("main_table", steps=20_000, only=["ASPC", "hopper-*"], options={"eval_every": 7_000})
    assert {run.train_options().eval_every for run in plan.runs.values()} == {7_000}
    timed = plan_of("runtime", steps=20_000, seeds=1)  # the suite declares a single evaluation
    assert {run.train_options().eval_every for run in timed.runs.values()} == {20_000}


def test_only_filters_runs_and_rejects_unknown_words() -> None:
    runs = plan_of("main_table", only=["td3_bc", "wPC", "*-human-v1"], seeds=1).runs.values()
    assert {run.algo for run in runs} == {"td3_bc", "wpc"}
    assert {run.dataset for run in runs} == {f"{hand}-human-v1" for hand in HANDS}
    with pytest.raises(AspcError, match="did you mean"):
        plan_of("main_table", only=["hoper-medium-v2"])


def test_ogbench_tasks_share_a_file(tmp_path: Path) -> None:
    for name in ("antmaze-large-navigate-v0.npz", "antmaze-large-navigate-v0-val.npz", "cube_single_play-v0.npz"):
        (tmp_path / name).touch()
    found = find_dataset_files(tmp_path)
    tasks = [f"antmaze-large-navigate-singletask-task{i}-v0" for i in range(1, 6)]
    assert {found[name].name for name in tasks} == {"antmaze-large-navigate-v0.npz"}
    assert found["cube-single-play-singletask-v0"].name == "cube_single_play-v0.npz"
    assert len(found) == 2 * 6  # with the default task; the validation file has none
    plan = make_plan(suites.expand(["ogbench"]), data=found, seeds=1, only=["antmaze-large-*", "ASPC"])
    files = {member.file for group in make_groups(plan, plan.runs, 8, found) for member in group.members}
    assert files == {str(found[tasks[0]])}
    every = make_plan(suites.expand(["locomotion"]), data=found, seeds=1)
    assert {run.dataset for run in every.runs.values()} == {name for name in found if "-task" in name}


def test_files_are_found_by_dataset_name(tmp_path: Path) -> None:
    for name in ("hopper_medium-v2.hdf5", "walker2d-expert.npz", "notes.txt"):
        (tmp_path / name).touch()
    found = find_dataset_files(tmp_path)
    assert set(found) == {"hopper-medium-v2", "walker2d-expert"}
    plan = make_plan(suites.expand(["locomotion"]), data=found)
    assert {run.dataset for run in plan.runs.values()} == set(found)
    assert len(plan.runs) == 6 * 2 * 4
    (tmp_path / "hopper-medium-v2.hdf5").touch()
    with pytest.raises(AspcError, match="Duplicate dataset hopper-medium-v2"):
        find_dataset_files(tmp_path)
    with pytest.raises(AspcError, match="--data"):
        make_plan(suites.expand(["locomotion"]))
    with pytest.raises(AspcError, match="--data"):
        make_plan(suites.expand(["study_integrations"]))
    partly = make_plan(suites.expand(["study_ablations"]), data={"hopper-medium": Path("x")})
    assert {run.dataset for run in partly.runs.values()} == {"hopper-medium", *MAZES}
    assert len(partly.missing_datasets) == 8


def test_a_file_with_a_d4rl_name_has_d4rl_transitions(tmp_path: Path) -> None:
    arrays = {
        "observations": np.zeros((4, 11)),
        "actions": np.full((4, 3), 0.5),
        "rewards": np.ones(4),
        "terminals": np.zeros(4, bool),
        "timeouts": np.array([False, True, False, True]),
        "next_observations": np.ones((4, 11)),
    }
    np.savez(tmp_path / "logs.npz", **arrays)
    d4rls, own = (load_dataset(name, str(tmp_path / "logs.npz")) for name in ("hopper-medium-v2", "my-logs"))
    assert (d4rls.name, d4rls.env, own.name, own.env) == ("hopper-medium-v2", "hopper-medium-v2", "my-logs", None)
    assert len(d4rls.transitions().rewards) == 2  # D4RL drops rows at timeouts
    assert len(own.transitions().rewards) == 4


def test_timed_groups_are_interleaved(tmp_path: Path) -> None:
    plan = plan_of(
        "runtime", "alpha0", only=["halfcheetah-medium*", "hopper-medium-v2", "ASPC", "TD3+BC", "alpha0*"], seeds=2
    )
    groups = collect_groups(tmp_path, plan, list(plan.runs), 10, ALL_FILES)
    timed = [(g.members[0].run.seed, g.members[0].variant) for g in groups if g.alone]
    assert timed == [(0, "ASPC"), (0, "TD3+BC"), (1, "ASPC"), (1, "TD3+BC")]
    assert [g.alone for g in groups] == [True] * 4 + [False] * (len(groups) - 4)  # the suites stay in order
    assert len(groups) > 4


def test_groups_share_a_program_up_to_the_size() -> None:
    plan = plan_of("alpha0", "runtime", only=["*-medium-v2", "maze2d-*", "ASPC", "alpha0*"])
    groups = make_groups(plan, plan.runs, 10, ALL_FILES)
    assert sorted(run_id for group in groups for run_id in group.run_ids) == sorted(plan.runs)
    for group in groups:
        families = {tasks.d4rl_datasets()[m.run.dataset].family for m in group.members}
        assert len({(f.observation_size, f.action_size) for f in families}) == 1
        assert len(group.members) <= (1 if group.members[0].run.alone else 10)
    # Runs that differ in alpha0 share a program.
    assert max(len({m.run.settings.get("base.alpha") for m in group.members}) for group in groups) == 3
    assert len(groups) == 4 + 3 + 2 + 4  # timed; 24 runs of 17/6, 12 of 11/3, 36 of Maze2d's 4/2
    for group in groups:
        assert RunGroup.from_json(group.to_json()) == group


def test_group_files_of_older_versions_are_read() -> None:
    plan = plan_of("aspc_aw", only=["antmaze-umaze-v2"], seeds=1)
    group = RunGroup(tuple(m for g in make_groups(plan, plan.runs, 4, {}) for m in g.members))
    content = json.loads(group.to_json())
    terms = {"aspc": ("aspc", "plain"), "aspc_aw": ("aspc", "advantage_weighted")}
    for member in content["members"]:
        member["run"]["algo"], member["run"]["bc"] = terms[member["run"]["algo"]]
    assert RunGroup.from_json(json.dumps(content)) == group


def test_groups_name_their_files() -> None:
    plan = plan_of("study_main", only=["ASPC", "hopper-medium", "maze2d-umaze"], seeds=1)
    files = {m.run.dataset: m.file for g in make_groups(plan, plan.runs, 4, ALL_FILES) for m in g.members}
    assert files == {"hopper-medium": "/data/hopper-medium.hdf5", "maze2d-umaze": None}


def test_suite_names_are_unique_and_checked() -> None:
    with pytest.raises(AspcError, match="already registered"):
        suites.register(suites.Suite("main_table", "", ""))
    with pytest.raises(AspcError, match="main_table"):
        suites.get("main_tabel")
