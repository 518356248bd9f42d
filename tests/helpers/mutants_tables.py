"""What mutants.py tests: the areas of modules, the named mutants, and changes that change nothing.

All files of modules are below src/npad, all test files below tests.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent.parent
FILES = {path.name: str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}


def tests(*names: str) -> tuple[str, ...]:
    return tuple(FILES[f"test_{name}.py"] for name in names)


BAD = ("bad_values", "bad_input", "bad_models")

# The tests of each module's own area, in the order in which they run.
AREAS = {
    "search/beam.py": tests("arguments", "diverse", "loop", *BAD, "observing", "beam"),
    "search/best_of.py": tests("arguments", "best_of"),
    "search/decoder.py": tests("arguments", *BAD, "signature", "chain_range"),
    "search/diverse.py": tests("arguments", "diverse", *BAD),
    "search/exact.py": tests("arguments", "exact", *BAD, "observing", "shared_prefixes"),
    "search/greedy.py": tests("loop", "beam"),
    "search/history.py": tests("loop", "paired_clean", "beam"),
    "hypotheses.py": tests("hypotheses", "score", "selectors", "chain_range"),
    "search/independent.py": tests("sampling", "loop", "observing", "beam"),
    "search/loop.py": tests(
        "loop", "paired_clean", "cost", *BAD, "captured", "shared_prefixes", "beam"
    ),
    "search/npad.py": tests(
        "arguments", "signature", "selectors", *BAD, "npad", "npad_chains", "chain_range"
    ),
    "search/registry.py": tests("arguments", "specs"),
    "rows.py": tests("hypotheses", "paired_clean", "loop", "prefixes", "beam"),
    "search/sampling.py": tests("arguments", *BAD, "sampling", "shared_sampling"),
    "selectors.py": tests("arguments", *BAD, "selectors", "with_cut"),
    "distributions.py": tests("arguments", *BAD, "distributions"),
    "noise/noisy.py": tests("arguments", *BAD, "noisy", "schedules"),
    "noise/random.py": tests("keyed", "sampling", "distributions"),
    "schedules.py": tests("arguments", *BAD, "schedules"),
    "rescoring/by_prefix.py": tests("prefixes", "score"),
    "rescoring/plan.py": tests("ragged", "prefixes", "score"),
    "rescoring/strategies.py": tests("score", "prefixes", "selectors", "paired_clean"),
    "rescoring/teacher_forcing.py": tests("score", "prefixes", "hf_captured"),
    "scoring.py": tests("score", *BAD),
    "storage/atomic.py": tests("folders", "checkpoint"),
    "storage/checkpoint.py": tests("checkpoint"),
}

# Wrong changes that once survived the tests of their area: (module, text, changed text, tests).
NAMED = {
    "a selector's NaN passes": (
        "selectors.py",
        "if bool((scores.isnan() & candidates.exists).any()):",
        "if False:",
        tests("selectors"),
    ),
    "per_sentence is not multiplied in NPAD": (
        "search/chains.py",
        "per_sentence = problems.per_sentence * len(chains)",
        "per_sentence = problems.per_sentence",
        tests("npad", "npad_chains"),
    ),
    "a beam takes width children of a parent": (
        "search/beam.py",
        "predicted.top(min(width + 1, predicted.logits.shape[-1]))",
        "predicted.top(min(width, predicted.logits.shape[-1]))",
        tests("beam"),
    ),
    "a beam takes width candidates": (
        "search/beam.py",
        ".flatten(1))[:, : 2 * width]",
        ".flatten(1))[:, :width]",
        tests("beam"),
    ),
    "a beam's ties are not in the order of tokens": (
        "search/beam.py",
        "first = predicted.best()[..., None]",
        "first = tokens[..., :1]",
        tests("beam"),
    ),
    "the end token counts for hypotheses that were cut": (
        "rescoring/teacher_forcing.py",
        "reads = lengths + (hypotheses.finished & hypotheses.exists)",
        "reads = lengths + hypotheses.exists",
        tests("score"),
    ),
    "scoring does not check for NaN": (
        "rescoring/strategies.py",
        "if bool((hypotheses.log_prob.isnan() & hypotheses.exists).any()):",
        "if False:",
        tests("score"),
    ),
    "duplicates are merged whatever their lengths": (
        "hypotheses.py",
        "np.column_stack([owner, lengths, finished, flat_tokens])",
        "np.column_stack([owner, finished, flat_tokens])",
        tests("hypotheses"),
    ),
    "joined results are padded with 0": (
        "hypotheses.py",
        "(0, longest - piece.tokens.shape[-1]), value=pad)",
        "(0, longest - piece.tokens.shape[-1]), value=0)",
        tests("hypotheses"),
    ),
    "unknown weights in a checkpoint are accepted": (
        "storage/checkpoint.py",
        'problems = {"missing": missing, "unknown": unknown}',
        'problems = {"missing": missing}',
        tests("checkpoint"),
    ),
    "no fsync": ("storage/atomic.py", "        os.fsync(handle)", "        pass", tests("folders")),
    "removal is not atomic": (
        "storage/atomic.py",
        "    os.replace(folder, grave)\n",
        "    shutil.rmtree(folder)\n",
        tests("folders"),
    ),
    "long texts count as one row": (
        "pipelines/pipeline.py",
        "return 1 + characters // CHARACTERS_PER_ROW",
        "return 1",
        tests("translate"),
    ),
    "the process's rank is left out of the seed": (
        "training/update.py",
        "{number} {self.replicas.rank}",
        "{number}",
        tests("training_updates"),
    ),
}

# Changes that no test on a CPU can see, and that do not count in the score: {(module, place):
# [(new text, reason)]}. A place is a line without its comment, or a function; the new text "*"
# stands for any change there.
EQUIVALENT: dict[tuple[str, str], list[tuple[str, str]]] = {
    **{
        place: [("*", "how much at a time: speed and memory, never the result")]
        for place in (
            ("search/loop.py", "CAPTURED_ROWS = 16384"),
            ("search/loop.py", "CPU_RESULT_ROWS = 4096"),
            ("search/loop.py", "GPU_STEPS = 8"),
            ("noise/random.py", "BLOCK = 1 << 16"),
            (
                "noise/random.py",
                'size = max(1, BLOCK // columns if streams.device.type == "cpu" else rows)',
            ),
            ("rescoring/by_prefix.py", "PLANNED_ROWS = 1 << 16"),
            ("rescoring/by_prefix.py", "CAPTURED_ROWS = 1 << 14"),
            ("rescoring/by_prefix.py", "LEAST_ROWS = 256"),
            ("rescoring/by_prefix.py", 'MAX_LOGITS = {"cpu": 1 << 26, "cuda": 1 << 30}'),
            (
                "rescoring/strategies.py",
                "return rectangles(reads, max_area=math.inf, step_cost=2048 if on_gpu else 8)",
            ),
            (
                "rescoring/strategies.py",
                "max_area, step_cost = (1 << 17, 256) if on_gpu else (1 << 12, 8)",
            ),
            (
                "rescoring/strategies.py",
                "for _, sentences in spans(counts.tolist(), 1 << 15 if on_gpu else 1 << 10):",
            ),
        )
    },
    (
        "search/loop.py",
        'return done.any() if done.device.type == "cpu" else done.sum() * 8 >= len(done)',
    ): [
        (new, "runs on a GPU only") for new in ("9", "done.sum() / 8", "done.sum() * 8 > len(done)")
    ],
    (
        "search/history.py",
        "record_gains(predicted.logits, predicted.norm, tokens, rows, *self._buffers(), eos)",
    ): [("pass", "runs on a GPU only; tests/engine/test_kernels.py compares it with torch")],
    ("search/independent.py", "IndependentRows._greedy_by_kernel"): [
        ("*", "runs on a GPU only; tests/engine/test_kernels.py compares it with torch")
    ],
    (
        "search/loop.py",
        "if frontier.tokens.is_cuda and frontier.tokens.numel() <= CPU_RESULT_ROWS:",
    ): [("frontier.tokens.numel() < CPU_RESULT_ROWS", "runs on a GPU only")],
    ("search/loop.py", "frontier = to_cpu(frontier)"): [("pass", "runs on a GPU only")],
    ("search/loop.py", "if graphs is None or len(groups) * rows > CAPTURED_ROWS:"): [
        ("len(groups) * rows >= CAPTURED_ROWS", "when capturing pays: speed, not the result")
    ],
    ("search/loop.py", "while step < problems.max_length:"): [
        ("step <= problems.max_length", "the loop breaks off at max_length itself")
    ],
    ("rows.py", "return x.argsort(dim=1, descending=True, stable=True)"): [
        ("x.argsort(dim=1, descending=True)", "torch's sort on a CPU is stable in any case")
    ],
    (
        "rescoring/teacher_forcing.py",
        "ensure_in_vocabulary(model, targets, predicted.logits.shape[-1])",
    ): [("1", "these logits have two dimensions")],
    ("rescoring/strategies.py", "longest = max((part.shape[-1] for part in parts), default=0)"): [
        ("1", "the default is for no hypotheses at all, whose coverage nobody reads")
    ],
    ("search/loop.py", "self.vocabulary = predicted.logits.shape[-1]"): [
        ("1", "these logits have two dimensions")
    ],
    ("scoring.py", "if max(target, default=0) >= 1 << 63:"): [
        ("1", "any small default for an empty target will do")
    ],
    **{
        ("storage/checkpoint.py", line): [
            (new, "the layout of a JSON file, which means nothing") for new in news
        ]
        for line, *news in (
            (
                '(part / CONFIG).write_text(json.dumps(config, indent=2) + "\\n")',
                "json.dumps(config)",
                "3",
            ),
        )
    },
    ("storage/checkpoint.py", "newer = isinstance(written, int) and written > FORMAT"): [
        ("written >= FORMAT", "comes after written != FORMAT")
    ],
    ("storage/atomic.py", 'flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)'): [
        ("1", "runs on Windows only, which has no O_NONBLOCK")
    ],
}
