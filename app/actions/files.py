"""The File menu: models, snapshots, sessions, and exports."""

from __future__ import annotations

from app.actions import dialogs
from app.control.actions import Action
from app.control.conditions import (
    needs_cell,
    needs_comparison,
    needs_file,
    needs_former,
    needs_kept_rows,
    needs_model,
    needs_resumable,
    needs_saveable,
    needs_steps,
    needs_unloaded,
)
from engine.spec.model import ModelSpec
from engine.wire.devices import UnloadModel

# fmt: off
FILES = (
    (
        Action("model.open", "Ctrl+Shift+O", "Open model folder…",
               "A folder in Hugging Face layout; dropping it on the window does the same", dialogs.open_folder,
               also="load model, checkpoint folder, weights, Llama, Hugging Face"),
        Action("model.hub", "", "Model by hub name…", "A model that is on this computer, or a download you allow",
               dialogs.ask_hub_name, also="download, Hugging Face, load model"),
        Action("model.shape", "", "Shape from config.json…",
               "Build an architecture with random weights, to see its cache", dialogs.open_shape,
               also="random weights, architecture"),
        Action("model.bundled", "", "Bundled model", "Load the small model that comes with the program",
               lambda shell: shell.intents.on_model_chosen(ModelSpec())),
        Action("model.compute", "", "Device, dtype and threads…",
               "Where and in which numbers models are loaded, and what this one would take there", dialogs.ask_loading,
               also="GPU, CUDA, CPU, precision, bfloat16, float16, threads, quantize weights, int8 weights"),
        Action("model.unload", "", "Unload model",
               "Let the model and its caches go; what was done stays, and is done once more when it is loaded again",
               UnloadModel(), needs_model),
        Action("model.reload", "", "Load model again",
               "Bring back the model that was unloaded, and do its steps once more",
               lambda shell: shell.reload_wanted.emit(), needs_unloaded),
    ),
    (
        Action("snapshot.open", "Ctrl+O", "Open snapshot or session…",
               "What was exported or saved, viewed without its model; dropping the file on the window does the same",
               dialogs.open_file, also="load cache, safetensors, restore, resume"),
        Action("server.attach", "", "Attach to a server…",
               "A server that publishes KV events, or a recording of them",
               dialogs.ask_server, also="vLLM, SGLang, TensorRT-LLM, KV events, connect, prefix tree, kvevents"),
        Action("session.save", "Ctrl+S", "Save session…",
               "Its steps, branches, edits and notes, for people to read and for the engine to repeat; never K and V",
               dialogs.save_session, needs_saveable, also="keep, write session"),
        Action("session.return", "", "Return to the former session",
               "The one that this prompt, model or file has replaced, as it was; the present one is kept as well",
               lambda shell: shell.return_to_former(), needs_former),
        Action("snapshot.continue", "", "Go on with the model", "Decode on from the opened file with its model",
               lambda shell: shell.intents.on_continued(), needs_resumable),
        Action("snapshot.close", "", "Close file", "Leave the opened file and begin anew with a model",
               lambda shell: shell.intents.on_file_closed(), needs_file),
    ),
    (
        Action("export", "Ctrl+E", "Export…", "The cache as a snapshot: one step, some, or the whole session",
               dialogs.ask_export, needs_kept_rows,
               also="save cache, safetensors, snapshot"),
        Action("export.npz", "", "Export as NumPy arrays…", "K and V as numbers, for numpy.load",
               lambda shell: dialogs.ask_export(shell, "npz"), needs_kept_rows),
        Action("export.table", "", "Export as table…", "The steps as CSV or Parquet, for pandas and spreadsheets",
               lambda shell: dialogs.ask_export(shell, "table"), needs_steps),
        Action("export.trace", "", "Export as trace…", "The timings of the steps, for Perfetto",
               lambda shell: dialogs.ask_export(shell, "trace"), needs_steps),
        Action("export.session", "", "Export as Python script…", "Repeats the session with the engine alone",
               lambda shell: dialogs.ask_export(shell, "session"), needs_kept_rows),
        Action("export.picture", "", "Export as picture…", "The window or a panel as PNG or SVG",
               lambda shell: dialogs.ask_export(shell, "picture"), needs_steps),
        Action("compare.report", "", "Save comparison report…", "Pictures and numbers of two runs as one HTML page",
               lambda shell: shell.window.compare().save_report(), needs_comparison),
    ),
    (
        Action("value.copy", "", "Copy value", "The exact number of the cell that is selected in Head",
               lambda shell: shell.window.head.copy_value(), needs_cell),
        Action("picture.copy", "Ctrl+Shift+C", "Copy picture", "The panel that has the focus, as a picture",
               lambda shell: shell.window.picture.copy_picture(), also="clipboard, screenshot"),
        Action("picture.save", "Ctrl+Shift+E", "Save picture…", "The panel that has the focus, as PNG or SVG",
               lambda shell: shell.window.picture.save_picture(), also="screenshot, PNG, SVG"),
    ),
    (
        Action("quit", "Ctrl+Q", "Quit", "End the program", lambda shell: shell.window.close(), also="exit, close"),
    ),
)
