"""What mutants.py tests: modules with the tests of their own area, and changes that change nothing.

All files of modules are below src/npad, all test files below tests.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
LEFT_OUT = (
    "scale/ray_cluster.py",
    *(f"training/{m}.py" for m in ("actors", "teacher", "cuda_graphs")),
)
FILES = {path.stem: str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
BAD = "bad_values bad_input bad_models"

# The tests of each module, by folder, in the order in which they run. Of these folders only
# scale/ray_cluster.py (its tests start clusters), and training's actors.py, teacher.py and
# cuda_graphs.py (their tests train for minutes, or need a GPU) are left out.
BY_FOLDER = {
    "": {
        "hypotheses": "hypotheses score selectors chain_range",
        "rows": "hypotheses paired_clean loop prefixes beam",
        "selectors": f"arguments {BAD} selectors with_cut",
        "distributions": f"arguments {BAD} distributions",
        "schedules": f"arguments {BAD} schedules",
        "scoring": f"score {BAD}",
    },
    "noise": {
        "noisy": f"arguments {BAD} noisy schedules",
        "random": "keyed sampling distributions",
    },
    "rescoring": {
        "plan": "ragged prefixes score",
        "strategies": "score prefixes selectors paired_clean",
        "teacher_forcing": "score prefixes hf_captured",
    },
    "search": {
        "beam": f"arguments diverse loop {BAD} observing beam",
        "best_of": "arguments best_of",
        "decoder": f"arguments {BAD} signature chain_range",
        "diverse": f"arguments diverse {BAD}",
        "exact": f"arguments exact {BAD} observing shared_prefixes",
        "greedy": "loop beam",
        "history": "loop paired_clean beam",
        "independent": "sampling loop observing beam",
        "loop": f"loop paired_clean cost {BAD} captured shared_prefixes beam",
        "npad": f"arguments signature selectors {BAD} npad npad_chains chain_range",
        "registry": "arguments specs",
        "sampling": f"arguments {BAD} sampling shared_sampling",
    },
    "storage": {
        "actors": "actor_storage",
        "atomic": "folders checkpoint",
        "checkpoint": "checkpoint",
        "confidence": "confidence doubtful",
        "jsonl": "jsonl",
        "marian": "marian",
        "regular": "regular files hostile_media checkpoint",
        "wheels": "fetch",
    },
    "scale": {
        "corpus": "scale_manifest scale_corpus",
        "distributed": "scale_units scale_corpus",
        "formats": "scale_parquet scale_corpus",
        "manifest": "scale_manifest scale_corpus",
        "pool": "scale_pool scale_corpus",
        "processes": "scale_processes scale_pool",
        "units": "scale_units scale_corpus",
        "worker": "scale_worker scale_corpus",
    },
    "pipelines": {
        "captioning": "captioning pipeline",
        "estimates": "doubtful signals confidence",
        "firefox": "firefox",
        "fetching": "fetch pretrained",
        "ffmpeg": "ffmpeg",
        "loading": "pipeline python_files captioning own_speech doubtful languages firefox whisper "
        "hf_mistakes hostile_folders translate transcripts confidence",
        "manifests": "manifests hostile_media",
        "names": "python_files translate languages firefox fetch",
        "outputs": "translate long_recordings",
        "pictures": "pictures hostile_media",
        "pipeline": "pipeline windows translate captioning doubtful texts",
        "sound": "sound hostile_media long_recordings ffmpeg",
        "transcription": "long_recordings transcripts",
        "translation": "translate pipeline",
        "writers": "long_recordings hostile_media translate transcripts",
    },
    "training": {
        "batches": "batches augmentation",
        "loop": "training_updates training_mistakes training_damage training_loop",
        "prepare": "prepare training_mistakes media pretrained",
        "randomness": "training_updates augmentation",
        "recipe": "training_recipe training_mistakes arguments",
        "run": "training_mistakes training_damage wrong_types_training media",
        "sources": "augmentation prepare media pretrained",
        "store": "prepare training_damage media pretrained",
        "update": "training_updates media training_loop",
        "validation": "validation training_mistakes training_damage",
    },
    "serve": {
        "app": "serve_routes serve_docs serve_security",
        "bodies": "serve_limits serve_connections serve_bad_input serve_speech",
        "decoding": "serve_batching serve_routes serve_stream",
        "events": "serve_stream serve_security",
        "limits": "serve_docs serve_options serve_security",
        "metrics": "serve_routes",
        "model_thread": "serve_batching serve_routes",
        "models": "serve_routes serve_batching serve_security serve_stream serve_speech",
        "options": "serve_options serve_limits serve_routes serve_speech",
        "security": "serve_security serve_limits",
        "server": "serve_protocol serve_connections serve_limits serve_cli",
        "service": "serve_protocol serve_security serve_limits serve_bad_input serve_speech "
        "serve_routes",
        "speech_routes": "serve_speech transcripts",
        "streaming": "serve_stream serve_limits",
        "text_routes": "serve_routes serve_limits serve_bad_input serve_stream serve_options",
    },
}
AREAS = {
    f"{folder}/{module}.py".lstrip("/"): tuple(FILES[f"test_{name}"] for name in names.split())
    for folder, modules in BY_FOLDER.items()
    for module, names in modules.items()
}

SPEED = "how much at a time: speed and memory, never the result"
GPU = "runs on a GPU only"
KERNEL = "runs on a GPU only; tests/engine/test_kernels.py compares it with torch"
SHAPE = "these logits have two dimensions"
DIGITS = "the digits of a figure that people read"
LIMIT = "a limit or a size; one more is as good"
NUMBER = re.compile(r"\b(?:0x[0-9A-F]+|[0-9_.]+)")
# Constants of which another is as good: limits far above what files and clients need, and sizes
# that change speed. A shift in the wrong direction counts.
ANOTHER_IS_AS_GOOD = {
    "pipelines/captioning.py": ("largest: ClassVar[int] = 128",),
    "pipelines/ffmpeg.py": (
        *("SECONDS = 600.0", "SAMPLE_BYTES = 2", "HEADER_BYTES = 4096", "REASON_BYTES = 4000"),
    ),
    "pipelines/firefox.py": ("MAX_VOCABULARY_BYTES = 1 << 26",),
    "pipelines/manifests.py": (
        *("MAX_FILE_BYTES = 1 << 28", "MAX_HEADER_BYTES = 1 << 20", "MAX_RATIO = 100"),
    ),
    "pipelines/pictures.py": (
        *("MAX_PIXELS = 100_000_000", "MAX_BYTES = 1 << 28", "MAX_SECONDS = 10.0", "DRAFT = 4"),
    ),
    "pipelines/pipeline.py": (
        *("WINDOW_BATCHES = 8", "MAX_CPU_LOGITS = 1 << 22", "CHARACTERS_PER_ROW = 256"),
    ),
    "pipelines/sound.py": (
        *("MAX_BYTES = 1 << 32", "HEADER_SECONDS = 10.0", "UNKNOWN_BYTES = 0x7FFF0000"),
        "BLOCK_FRAMES = 10_000",
    ),
    "pipelines/transcription.py": (
        *("max_rows: ClassVar[int] = 256", "largest: ClassVar[int] = 16"),
    ),
    "scale/formats.py": ("ROWS = 1024", "BLOCK_BYTES = 1 << 20"),
    "scale/manifest.py": ("MAX_ENTRY_BYTES = 1 << 16", "SHOWN = 60"),
    "scale/pool.py": (
        *("AHEAD = 4", "DEATHS = 3", "START_DEATHS = 5", "POLL_SECONDS = 1.0"),
        "start_seconds: float = 600.0",
    ),
    "scale/processes.py": ("STOP_SECONDS = 5.0",),
    "scale/units.py": ("UNITS_PER_WORKER = 4",),
    "serve/bodies.py": ("SLOWEST = 500_000",),
    "serve/events.py": ("KEEP_ALIVE_SECONDS = 10.0",),
    "serve/models.py": ("ANCHORS = 5000",),
    "serve/server.py": (
        *("BACKLOG = 2048", "LARGEST_HEAD = 32_768", "SEND_BUFFER = 65_536"),
        "DESCRIPTORS = 16_384",
    ),
    "serve/service.py": ("PIECE = 65_536",),
    "storage/jsonl.py": ("MAX_LOG_BYTES = 1 << 30",),
    "storage/marian.py": (
        *("MAX_BYTES = 1 << 30", "MAX_ITEMS = 10_000", "MAX_NAME = 256"),
        "MAX_SHORTLIST_BYTES = 1 << 28",
    ),
    "storage/regular.py": ("MAX_JSON_BYTES = 1 << 26",),
    "training/batches.py": ("WINDOW = 100",),
    "training/loop.py": ("REPORT_INTERVAL = 10",),
    "training/prepare.py": ("CHUNK = 10_000", "MAX_VOCABULARY = 10_000_000", "BATCH = 64"),
    "training/sources.py": ("MAX_FEATURE = 1 << 20",),
    "training/update.py": ("TIMEOUT = timedelta(days=1)",),
    "training/validation.py": ('ROWS = {"cuda": 1024, "cpu": 256}',),
}
# Changes that no test on a CPU can see, and that do not count in the score: module, place, new
# texts, reason. A place is a line without its comment, or a function; the new text "*" stands for
# any change there.
EQUIVALENT: list[tuple[str, str, tuple[str, ...], str]] = [
    *(
        (module, line, tuple(str(ast.literal_eval(n) + 1) for n in NUMBER.findall(line)), LIMIT)
        for module, lines in ANOTHER_IS_AS_GOOD.items()
        for line in lines
    ),
    ("search/loop.py", "CAPTURED_ROWS = 16384", ("*",), SPEED),
    (
        "training/randomness.py",
        "transform[:, 0, 0] = torch.where(mirrored < 0.5, -scale, scale)",
        ("mirrored <= 0.5",),
        "half of all numbers in any case",
    ),
    ("pipelines/manifests.py", "cast(Any, listed).members.clear()", ("pass",), SPEED),
    (
        "pipelines/pictures.py",
        "BACKGROUND = (255, 255, 255, 255)",
        ("256",),
        "Pillow takes the largest value, 255",
    ),
    ("training/update.py", "GPU_GRID = (16, 4)", ("*",), GPU),
    ("training/update.py", "torch.cuda.set_device(number)", ("pass",), GPU),
    (
        "training/update.py",
        "joined",
        ("distributed.init_process_group('nccl' if device.type == 'cuda' else 'gloo')",),
        LIMIT,
    ),
    (
        "training/loop.py",
        '"seconds": round(time.monotonic() - self.began, 2),',
        ("3",),
        DIGITS,
    ),
    (
        "training/prepare.py",
        "in_sample = i * sample // pairs != (i + 1) * sample // pairs or sample >= pairs",
        ("sample > pairs",),
        "a sample of as many lines takes every line by its first rule",
    ),
    ("training/validation.py", '"greedy": round(progress["initial"], 4),', ("5",), DIGITS),
    ("training/validation.py", '"best": round(progress["best"], 4),', ("5",), DIGITS),
    (
        "storage/marian.py",
        "count = math.prod(shape) if shape and min(shape) > 0 else 0",
        ("min(shape) >= 0",),
        "a product with 0 is 0 as well",
    ),
    (
        "scale/processes.py",
        "process = SPAWN.Process(target=serve, args=(there, spec), daemon=True)",
        ("False",),
        "a worker ends with its pipe in any case",
    ),
    (
        "training/update.py",
        'number = int(os.environ["LOCAL_RANK"]) if world > 1 else device.index or 0',
        ("*",),
        GPU,
    ),
    (
        "serve/decoding.py",
        "outcomes = list(translator.run(texts, decoding, max(1, len(texts)), skip=True))",
        ("2",),
        SPEED,
    ),
    (
        "serve/bodies.py",
        "if isinstance(value, str) and value.isdecimal() and len(value) < 10:",
        ("11", "len(value) <= 10"),
        "no parameter may have ten digits, as a number or as a text",
    ),
    ("storage/regular.py", "return file.read(max_bytes + 1)", ("2",), LIMIT),
    ("serve/service.py", "name = brief(next(iter(given)), 60)", ("61",), LIMIT),
    ("serve/service.py", 'return brief(f"{kind}{error}", 300)', ("301",), LIMIT),
    ("serve/text_routes.py", '"seconds": round(time.monotonic() - start, 4),', ("5",), DIGITS),
    ("serve/streaming.py", "return round(time.monotonic() - self.start, 4)", ("5",), DIGITS),
    (
        "serve/server.py",
        "_looks = 0",
        ("1",),
        "the first look at a client that is waited for sets it to 0",
    ),
    (
        "storage/checkpoint.py",
        "if isinstance(layers, int) and layers > len(shapes):",
        ("layers >= len(shapes)",),
        "a model has more tensors than layers, so that they differ in any case",
    ),
    (
        "training/prepare.py",
        'longest["longest_seconds"] = round(sources["train"].longest * FRAME_SECONDS, 2)',
        ("3",),
        "a frame is a hundredth of a second",
    ),
    ("training/prepare.py", "longest: int = 0", ("1",), "a sound has one frame at least"),
    *(
        (module, "if TYPE_CHECKING:", ("if not TYPE_CHECKING",), "imports for type checkers alone")
        for module in ("pipelines/fetching.py", "pipelines/pictures.py")
    ),
    ("pipelines/sound.py", "start = file.read(22)", ("23",), LIMIT),
    (
        "pipelines/pipeline.py",
        "return max(1, MAX_CPU_LOGITS // capabilities.vocabulary)",
        ("2",),
        SPEED,
    ),
    (
        "training/run.py",
        'vocabulary = (1, 1) if store is None else store.about["vocabulary"]',
        ("2",),
        LIMIT,
    ),
    (
        "serve/server.py",
        "listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)",
        ("2",),
        "any number but 0 sets it",
    ),
    (
        "serve/service.py",
        'path = brief(request.scope["path"], 100).strip("\'")',
        ("101",),
        LIMIT,
    ),
    ("storage/marian.py", "unpacked = file.read(max_bytes + 1)", ("2",), LIMIT),
    (
        "scale/units.py",
        "return replace(candidates[0], signature=signed)",
        ("1",),
        "a blank text has the same output in every range of chains",
    ),
    ("serve/bodies.py", "end = (end + chunk[-8:])[-8:]", ("9",), LIMIT),
    ("serve/events.py", "if left <= 0:", ("left < 0",), "a deadline to the nanosecond"),
    (
        "scale/worker.py",
        "for outcome in self.translator.run(texts, decoding, len(texts), skip=True)",
        ("False", "self.translator.run(texts, decoding, len(texts))"),
        "a text that is refused is found by halving: speed, not the result",
    ),
    ("search/loop.py", "CPU_RESULT_ROWS = 4096", ("*",), SPEED),
    ("search/loop.py", "GPU_STEPS = 8", ("*",), SPEED),
    ("noise/random.py", "BLOCK = 1 << 16", ("*",), SPEED),
    (
        "noise/random.py",
        'size = max(1, BLOCK // columns if streams.device.type == "cpu" else rows)',
        ("*",),
        SPEED,
    ),
    ("rescoring/teacher_forcing.py", "PLANNED_ROWS = 1 << 16", ("*",), SPEED),
    ("rescoring/teacher_forcing.py", "CAPTURED_ROWS = 1 << 14", ("*",), SPEED),
    ("rescoring/teacher_forcing.py", "LEAST_ROWS = 256", ("*",), SPEED),
    (
        "rescoring/teacher_forcing.py",
        'MAX_LOGITS = {"cpu": 1 << 26, "cuda": 1 << 30}',
        ("*",),
        SPEED,
    ),
    (
        "rescoring/strategies.py",
        "return rectangles(reads, max_area=math.inf, step_cost=2048 if on_gpu else 8)",
        ("*",),
        SPEED,
    ),
    (
        "rescoring/strategies.py",
        "max_area, step_cost = (1 << 17, 256) if on_gpu else (1 << 12, 8)",
        ("*",),
        SPEED,
    ),
    (
        "rescoring/strategies.py",
        "for _, sentences in spans(counts.tolist(), 1 << 15 if on_gpu else 1 << 10):",
        ("*",),
        SPEED,
    ),
    (
        "search/loop.py",
        'return live if device.type == "cpu" or 8 * live <= 7 * sentences else sentences',
        ("9", "8", "8 / live", "7 / sentences", "8 * live < 7 * sentences"),
        GPU,
    ),
    (
        "search/history.py",
        "record_gains(predicted.logits, predicted.norm, tokens, rows, *self._buffers(), eos)",
        ("pass",),
        KERNEL,
    ),
    ("search/independent.py", "IndependentRows._greedy_by_kernel", ("*",), KERNEL),
    (
        "search/loop.py",
        "if frontier.tokens.is_cuda and frontier.tokens.numel() <= CPU_RESULT_ROWS:",
        ("frontier.tokens.numel() < CPU_RESULT_ROWS",),
        GPU,
    ),
    ("search/loop.py", "frontier = to_cpu(frontier)", ("pass",), GPU),
    (
        "search/loop.py",
        "captured = graphs is not None and len(groups) * rows <= CAPTURED_ROWS",
        ("len(groups) * rows < CAPTURED_ROWS",),
        "when capturing pays: speed, not the result",
    ),
    (
        "search/loop.py",
        "while step < problems.max_length:",
        ("step <= problems.max_length",),
        "the loop breaks off at max_length itself",
    ),
    (
        "rows.py",
        "return x.argsort(dim=1, descending=True, stable=True)",
        ("x.argsort(dim=1, descending=True)",),
        "torch's sort on a CPU is stable in any case",
    ),
    (
        "rescoring/teacher_forcing.py",
        "ensure_in_vocabulary(model, targets, predicted.logits.shape[-1])",
        ("1",),
        SHAPE,
    ),
    (
        "rescoring/strategies.py",
        "longest = max((part.shape[-1] for part in parts), default=0)",
        ("1",),
        "the default is for no hypotheses at all, whose coverage nobody reads",
    ),
    ("search/loop.py", "self.vocabulary = predicted.logits.shape[-1]", ("1",), SHAPE),
    (
        "scoring.py",
        "if max(target, default=0) >= 1 << 63:",
        ("1",),
        "any small default for an empty target will do",
    ),
    (
        "storage/checkpoint.py",
        "newer = isinstance(written, int) and written > FORMAT",
        ("written >= FORMAT",),
        "comes after written != FORMAT",
    ),
    (
        "storage/atomic.py",
        'flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)',
        ("1",),
        "runs on Windows only, which has no O_NONBLOCK",
    ),
]
