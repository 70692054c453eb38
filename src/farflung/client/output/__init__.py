"""What a run shows and stores.

run_metrics
    Counts steps, losses, seconds and bytes; makes rows and the summary of them.
recorder
    Turns the events of a run into files and calls to an `Observer`.
progress
    `Observer`, the interface through which a run reports its progress.
records
    Rows and summary of a run, as scripts read them.
run_folder
    The run folder, which stays valid on a full disk and after a kill.
run_record
    `run.json`: the name of a run, and the options that it keeps when it is resumed.
drawn_intervals
    How many intervals of workers were drawn to be checked, and what came of them.
history
    The rows of a run that count, and how many attempts it has had.
weights
    Save and load `model.safetensors`.
tensor_file
    Read and write safetensors files in which tied tensors are stored once.
checkpoints
    Checkpoints, in a folder or an object store.
export
    The weights of a run as a plain state dict.
weights_reader
    Read the weights of a model on the meta device from safetensors files.
"""
