"""What to change, by the code of a finding; what it costs, and why its gain is not known. See
`filling` for what a template is.
"""

from typing import Final

from ioprof.format.run_record import NoGain, Reason
from ioprof.report.texts.catalogue.findings import CAUSES
from ioprof.report.texts.catalogue.sentences import STORE

_TIME: Final = "[{of_workers:if}workers'|steps'] time"
_FUNCTION: Final = f"[ ({{function_share:.1%}} of the {_TIME} in all of {{function}})]"
_WAITS: Final = (
    "[, {line_waits:.0%} of it waiting]"
    "[{awaited:if}, in a thread or process for which the loop waits]"
)
_TAKES: Final = f"it takes {{line_share:.1%}} of the {_TIME}{_WAITS}{_FUNCTION}"
_AT: Final = "[ at {line}]"
_LINE: Final = f"[, {{line_share:.1%}} of the {_TIME} at {{line}}]"
_BATCH: Final = "[ ({batch_size} samples per batch)]"
_NAME: Final = "[{file:path}|the data]"
_FASTER: Final = "[{on_node:if}a faster disk|faster, node-local storage]"
_HOST: Final = (
    "[{processes:if}a step waits {step_s:ms} for other processes of the job|a step spends"
    " {step_s:ms} in the ranks' own Python between waiting, copying and computing]"
)
_OWN: Final = (
    "[{threads:if}threads of the training process spend {step_s:ms} a step on {own:own} while the"
    " loop waits for them|a step spends {step_s:ms} on {own:own} in the training process itself]"
)
_BESIDE: Final = (
    "{beside} other process{beside:es} of the job[ ({programs})], [{several:if}each ]with"
    " {beside_threads:.1f} threads that could run on average,"
)
_KEEP_WORKERS: Final = (
    "[Make the loader once, before the first epoch (now: {made_at}, anew for each), and"
    " {option.keep_workers:lower}|{option.keep_workers}]"
)
_CORES: Final = "{allowed} core{allowed:s}"

WHY: Final = {
    "reads": "each waits for one read at a time[, which takes {p50_s:ms} (p50)]",
    "peers": "a step waits {step_s:ms} for data that others send",
    "store_requests": f"each has one request at a time; {STORE}",
    "store_connections": f"each has its own connections; {STORE}",
    "page_cache": "a step waits {step_s:ms} for reads from memory",
    "decode": (
        "[decoding one [{images:if}image|sample] takes {sample_s:ms} of a"
        " [{by_workers:if}worker|rank]|a step waits {step_s:ms} for decoding]"
    ),
    "transform": f"a step waits {{step_s:ms}} for transforms{_LINE}",
    "collate": f"a step waits {{step_s:ms}} for collating{_BATCH}",
    "loader": (
        "[{imported:if}a step waits {step_s:ms} for its batch|that is {workers_share:.1%} of the"
        " workers' time|a step waits {step_s:ms} for worker time that no read, decode or transform"
        " covers]"
    ),
}
"""What it would be good for: the end of what several findings say, by the fact `why`."""

_SHARDS: Final = (
    "one worker reads [{one_shard:if}the only shard of a rank|each of the {shards} shards of a"
    " rank], so that of more workers some would have nothing to read[; <why>]"
)

ACTIONS: Final = {
    # ------------------------------------------------------------------------ of compute
    "anomalies": (
        "Switch off torch.autograd.set_detect_anomaly: it is on, and keeps the stack of each"
        " operation of the forward pass and looks for NaN in each of the backward pass"
    ),
    "optimizer": (
        "Make the optimizer's step cheaper (fused=True; sparse gradients for large embeddings;"
        " fewer"
        " steps, by accumulating gradients): it takes {share:.1%} of the steps' time"
    ),
    "gradients": (
        "Do less with the gradients between the backward pass and the optimizer's step, or not in"
        " every step (clipping parameter by parameter, statistics of them): it takes {share:.1%}"
        " of the steps' time[, most of it at {line}]"
    ),
    "inference": (
        "Make fewer forward passes without gradients (evaluate or generate less often, and with a"
        " cache of keys and values; keep what a model returns that is not trained): they take"
        " {share:.1%} of the steps' time[, most of it at {line}]"
    ),
    "loss": (
        "Compute the loss with fewer operations on larger tensors, or compile it (torch.compile):"
        " before the backward pass it takes {share:.1%} of the steps' time, the model {model:.1%}"
        "[, most of it at {line}]"
    ),
    "device": (
        "Use a faster model or device, here one that is twice as fast: everything but compute took"
        " {rest:.1%} of the steps' time[, but the loop runs for {loop:.0%} of it beside the device"
        " (Python, and launching kernels), and bounds a faster one]"
    ),
    # ------------------------------------------------------------------------ of reads
    "receive_streams": (
        f"[{{by_socket:if}}Ask {_NAME} for all of a batch in one request, or receive it|Receive"
        f" {_NAME}] in several streams at once, or copy it to local storage first: a step waits"
        " {step_s:ms} for data that others send"
    ),
    "read_less": "Read no more than is wanted: <remedy>; <seen>",
    "read_part": (
        "[{images:if}Store images in the size that the model gets|{mapped:if}Switch readahead off"
        " for the map (madvise, MADV_RANDOM), or read by pread()|Read only the part that a sample"
        " needs (seek and read, a range of frames, fewer columns, smaller chunks or row groups), or"
        f" store what the dataset returns]: {{read_bytes:amount}} of {_NAME} are read[{{stored:if}}"
        " from storage] for a [{of_sample:if}sample|batch] of {returned_bytes:amount}, {ratio:,.1f}"
        " × as much"
    ),
    "read_again": (
        f"Read {_NAME} once in a pass over the data (keep what is read; take samples of one file,"
        " chunk or row group one after the other; a sampler without repetitions): each of its"
        " {once_bytes:amount} is read {times:,.1f} times in a pass"
    ),
    "divide_data": (
        f"[{{calls:if}}Divide the records of {_NAME} among the workers before [{{decodes:if}}they"
        ' are decoded|"{call:clean80}"] (get_worker_info() and the rank in __iter__): each of'
        " {workers} workers reads all of its {bytes:amount}, and [{decodes:if}decodes {calls:,.1f}"
        " [{images:if}images|records]|does that {calls:,.1f} times] for each sample that it"
        f" delivers|Give each worker its own part of {_NAME} (shards, files or ranges of lines, by"
        " get_worker_info() and the rank in __iter__): each of {workers} workers reads all of its"
        " {bytes:amount} in every pass, so either each sample comes {workers} times, or each worker"
        " reads and parses what it then discards]"
    ),
    "share_reads": (
        f"Read {_NAME} once on each node, and share it (one rank reads and sends it to the others;"
        " shared memory; a map): {ranks} ranks read the same {once_bytes:amount}, so that"
        " {read_bytes:amount} came from storage, which took each of them {took_s:,.1f} s"
    ),
    "larger_reads": "Read in larger pieces (<remedy>): <seen>; a step waits {step_s:ms} for data",
    "slow_file": (
        "Copy {file:path} to faster storage, or keep it in memory: {reads:,} reads of this one file"
        " took {took_s:,.2f} s, the slowest {most_s:ms}; a step waits {step_s:ms} for data"
    ),
    "fewer_bytes_of_storage": (
        "Keep {option.workers_name}, and read fewer bytes per sample: storage delivered"
        " {bytes_per_s:MB}/s with {depth:.1f} reads at a time, and is bound by throughput, which"
        " workers share"
    ),
    "read_ahead": (
        "Read more at a time ([{lacks_shards:if}more shards, and as many workers|"
        "{option.workers_name}], or threads that read ahead): {depth:.1f} reads from storage were"
        " in"
        " progress at a time, {latency_s:ms} each; storage is bound by latency, so more reads at a"
        " time get more, also where all cores are in use"
    ),
    "local_copy": "{option.local_copy}: a step waits {step_s:ms} for data",
    "storage": (
        "Use storage that delivers {bytes_per_s:MB}/s in {reads_per_s:,.0f} reads/s"
        " ({each_bytes:kB} each): the devices need that[ for the batches that need most"
        " ({mean_bytes_per_s:MB}/s on average)][, and this run got {got_bytes_per_s:MB}/s]"
    ),
    "copy": f"Copy {_NAME} to {_FASTER} before the job starts: a step waits {{step_s:ms}} for data",
    "requests_together": (
        "Send the requests of a batch at the same time (asyncio.gather, a pool of threads in"
        " __getitems__ of the dataset, cat() of fsspec): now {in_turn:.0f} of a batch follow one"
        f" another; {STORE}"
    ),
    "pack_objects": (
        "Fetch many samples with one request: pack them into shards (WebDataset, Parquet) of 100 MB"
        f" and more: {STORE}"
    ),
    "request_timeout": (
        "Give requests a time-out of a few times the usual duration, and repeat those that exceed"
        f" it: {STORE}"
    ),
    "native_client": (
        "Do less in the client: a client in native code (s3torchconnector, obstore, boto3 with"
        f" awscrt), reads of several MB at a time, more processes instead of threads: {STORE}"
    ),
    "nearer_store": (
        "Copy the data to node-local storage before the job starts, or use a server that is nearer"
        f" or faster: {STORE}"
    ),
    "keep_connections": (
        "Keep connections open (one session or client per worker): {opened:,} were opened for"
        " {requests:,} requests to {store}"
    ),
    "columns": "Read fewer bytes per sample from storage: {option.fewer_bytes}",
    "to_lmdb": (
        "Convert to LMDB (ioprof convert imagenet SRC DST --layout lmdb): now each of the {reads:,}"
        " reads, {each_bytes:kB} on average, opens a file of its own"
    ),
    "stage": (
        "Copy the dataset ({dataset_bytes:GB}) to node-local storage before the job starts[, and"
        " memory ({memory_bytes:GB1}) holds it after the first epoch]"
    ),
    "fewer_bytes": (
        "Read fewer bytes per sample: {reads:,} reads were served from memory, {each_bytes:kB} on"
        " average[{originals:if}; images stored smaller (ioprof convert ... --image rgb256) are"
        " read faster]"
    ),
    "first_epoch": (
        "Read the data once before the job starts, or copy it to node-local storage: only the first"
        " epoch waits for storage ({seconds:,.2f} s), later ones find the data in memory"
    ),
    # ------------------------------------------------------------------------ of making batches
    "unused_samples": (
        "Throw fewer samples away: [{decoded:if}shuffle and select before samples are decoded"
        " (.shuffle() before .decode()), and ]{option.keep_workers:lower}, or make epochs longer:"
        " of"
        " {taken:,} samples that were taken out of shards {used:,} were in batches that the loop"
        " got; stages such as select drop the others, or they were still in a shuffle buffer when"
        " an"
        " epoch or the job ended"
    ),
    "smaller_tasks": (
        "Give the pool's workers once what each task needs (initializer=, or a global before the"
        " pool is made): their arguments are pickled, sent and made anew for each task, which takes"
        " {share:.1%} of the steps' time"
    ),
    "decode_crop": (
        "Decode only the crop of each image (--decode roi instead of {decode}): " + WHY["decode"]
    ),
    "decode_less": (
        f"[{{decoder:decoders}}{_AT}|Decode less for each sample{_AT} (images stored smaller), or"
        " use a faster decoder]: " + WHY["decode"]
    ),
    "smaller_images": (
        "Convert to 256-pixel images (ioprof convert imagenet SRC DST --image rgb256): "
        + WHY["decode"]
        + " at the original size"
    ),
    "cores": (
        "Use more cores: {samples_per_s:,.0f} samples/s, the [{by_loop:if}loops'|devices'] rate,"
        " need {workers:,.1f} workers that decode[, and the job has {cpus} cores]"
    ),
    "transform": (
        "Make the transform[ at {line}|s] faster, or store their result: " + WHY["transform"]
    ),
    "format_columns": (
        "Format fewer columns, those that the model takes (select_columns, or"
        " set_format(columns=...)): " + WHY["transform"]
    ),
    "resized_images": (
        "Store the images resized (ioprof convert imagenet SRC DST --image rgb256): "
        + WHY["transform"]
    ),
    "collate_line": (
        f"Make what collates faster at {{line}}, or do it once before training: {_TAKES}"
    ),
    "collate": (
        "Write samples directly into the batch's memory instead of stacking them afterwards: "
        + WHY["collate"]
    ),
    "batched_index": (
        "Index once for a batch instead of once for each sample (a __getitems__ of the dataset, or"
        " sampler=BatchSampler(...) with batch_size=None): a batch is made of {samples:,} samples"
        " of"
        " {sample_s:µs}, which are mostly the calls and their collating"
    ),
    "whole_tensors": (
        "Send a copy of what a sample takes from a larger tensor or memory map (.clone(), or"
        " np.ascontiguousarray before torch.from_numpy): the tensors of a batch have"
        " {part_bytes:MB}, and are parts of larger ones of {whole_bytes:MB}, all of which a worker"
        " sends and the loop frees"
    ),
    "send_less": (
        "[{per_step:if}Make batches in the workers (batch_size={per_step} of the loader, or"
        " .batched({per_step}) of a pipeline), since the loop takes {per_step:,} samples one by one"
        " for a step|Send less per batch, in fewer tensors (uint8 instead of float32, one tensor"
        " instead of many, no Python objects, a clone() of what is part of a larger tensor, which"
        " is sent whole)]: the rank waits {step_s:ms} a step for batches that are made and on their"
        f" way{_BATCH}"
    ),
    "dataset": (
        "[{imported:if}Make batches cheaper, in what their samples read, decode or transform|Do"
        " less"
        " in the dataset's own code, for each sample or once per worker]: " + WHY["loader"]
    ),
    "loader_line": f"Make {{line}} faster, or do it once before training: {_TAKES}",
    "served_line": (
        "Ask for less at {line}, or keep what is asked for where the workers can read it themselves"
        f" (shared tensors, a memory map, a file): {_TAKES}; it asks another process of the job"
    ),
    "sampler": (
        f"Choose the samples of a batch with less work in the sampler{_AT} (a table made once"
        " instead of a loop; an iterator that is kept, where iter() of the loader is called for"
        " each"
        " batch): it took {share:.1%} of the steps' time in the training process, whatever the"
        " workers do"
    ),
    "worker_gc": (
        "Call gc.freeze() before the workers are started, or gc.disable() in worker_init_fn:"
        " Python's garbage collector took {share:.1%} of the steps' time in the workers"
    ),
    "unseen_maker": (
        "Look at what makes the batches: the rank waited for other processes or threads, of whose"
        " work nothing was recorded; put ioprof.span around its parts there"
    ),
    "record_reads": (
        "Record the reads as well: " + WHY["loader"] + ", and reads were not captured"
    ),
    "longer_run": (
        "Record a longer run ({steps:with_steps}): {ratio:.0%} of this time is in the first"
        " {warmup}"
        " steps"
    ),
    # ------------------------------------------------------------------------ of the loader's use
    "workers": (
        "Use {workers:with_workers} [on each rank: rank {lacking} has {fewest}|instead of {now}]"
        "[: {cpus} cores serve {ranks}"
        " rank{ranks:s} with {now} worker{now:s} each, and <why>|: a worker uses"
        " {worker_cores:.2f} cores and waits for the rest of the time, so more of them need few"
        " cores; <why>]"
    ),
    "own_lock": (
        "Let workers not wait for each other at a lock that they share (a file, a connection or a"
        " client of its own in each worker; less that is done while it is held): {part:.0%} of the"
        " making of a batch is done by one of them at a time"
    ),
    "raise_workers": "Raise {option.workers_name} while cores are idle: <why>",
    "more_shards": (
        f"Divide the data into more shards, and then use {{workers:with_workers}}: {_SHARDS}"
    ),
    "workers_of_shards": (
        f"Use {{shards:with_workers}} instead of {{now}}, and more with more shards: {_SHARDS}"
    ),
    "loader_workers": (
        "Give the loader of {dataset} workers, too (num_workers={workers} instead of 0"
        "[; made at {made_at}]): the loop makes its batches itself, one after the other"
    ),
    "shards": (
        "Divide the data into {workers} shards or more, one for each worker (get_worker_info):"
        " {idle} of {workers} workers made no batch, and more of them would make none either"
    ),
    "equal_work": (
        "Give all workers as much work (shards of equal size, or many more than workers; samples"
        " that take equally long): the busiest of {workers} workers fetched for {busiest_s:ms1} a"
        " step, the mean is {mean_s:ms1}"
    ),
    "prefetch": (
        "[{when_wanted:if}Submit the next batch to the pool before using this one: now each is"
        " submitted only when it is needed, and then awaited at once|Prepare more batches ahead["
        " ({prefetch:with_prefetch} instead of {now} per worker): the workers make a batch in"
        " {supply_s:ms1} on average and the loop takes {consumer_s:ms1}, but a batch took up to"
        " {longest_s:ms0}|: {prefetch:with_prefetch} instead of {now} per worker]]"
    ),
    "persistent_workers": (
        _KEEP_WORKERS + "[: workers started {times} times, which took {share:.1%} of the steps'"
        " time[, the largest part of it at {line}]; what they do at their start (an initializer,"
        " loading data) is then done once"
        "|: starting and ending workers took {share:.1%} of the steps' time; what a worker does at"
        " its start (worker_init_fn, opening the dataset) is then done once]"
    ),
    "validation_workers": (
        "{option.keep_workers} to validate from[{of_training:if}, and in that to train from]"
    ),
    "epoch_start": (
        "Do less at the start of an epoch, or make epochs longer: the workers are kept from one"
        " epoch to the next, and starting and ending epochs took {share:.1%} of the steps' time"
    ),
    "start_workers": (
        "Start the workers in less time (multiprocessing_context='fork', or 'forkserver' with"
        " set_forkserver_preload; fewer imports in the main module, less in worker_init_fn): the"
        " loader is iterated once, and the only start[ of its {workers} workers] took {share:.1%}"
        " of"
        " the steps' time"
    ),
    "discard": (
        "Skip batches before they are loaded (in the sampler, or by the state of a"
        " StatefulDataLoader) instead of in the loop: with {discarded:,} of {batches:,}"
        " batches[ ({samples:,} samples)] nothing was done[, all before the first step; ranks"
        " waited"
        " {waited_s:,.1f} s for them]"
    ),
    "load_on_each_rank": (
        "Let each rank load its own batches (accelerate: dispatch_batches=False, for an iterable"
        " dataset with samples that are split over the ranks): rank {rank} loads and sends the"
        " batches of all ranks, and the others wait for it"
    ),
    # ------------------------------------------------------------------------ of the process's own
    "copy_environment": (
        f"Copy the environment of {{file:path}} to node-local storage before the job starts:"
        f" {_OWN},"
        " where its pages are first used"
    ),
    "receive_ahead": (
        "Receive from {file:path} in other threads or processes, ahead of the step that uses it, or"
        " ask for more at once: a step waits {step_s:ms} for what others send to the training"
        " process itself"
    ),
    "receive_more": (
        "Receive from {file:path} in more threads or processes, or ask for more at once: " + _OWN
    ),
    "copy_or_cache": (
        f"Copy {_NAME} to {_FASTER}, or read it once before the job starts if memory can hold it:"
        f" {_OWN}"
    ),
    "read_in_workers": (
        f"Read {_NAME} [{{has_loader:if}}in the loader's workers|in other processes or threads],"
        f" ahead of the step that uses it: {_OWN}"
    ),
    "work_in_workers": (
        "Do this work [{has_loader:if}in the loader's workers|in other processes or threads], ahead"
        f" of the step that uses it: {_OWN}"
    ),
    "read_less_each": f"Read less for each sample{_AT}: {_OWN}",
    "less_each": (
        "[{decoder:decoders}|{images:if}Decode less for each sample (fewer images, or smaller"
        " ones),"
        f" or use a faster decoder|Do less for each sample]{_AT}: {_OWN}"
    ),
    "divide": (
        "Divide this work among more [{processes:if}processes|threads, or among processes if it"
        " holds Python's interpreter lock][ ({idle_cores:.1f} cores were idle on average)|, if"
        f" storage serves more reads at a time]: {_OWN}"
    ),
    # ------------------------------------------------------------------------ of host
    "core_for_loop": (
        "Leave a core for the training loop: for {share:.1%} of the steps' time it could run and"
        " had"
        " none, because other threads had them; use fewer workers or threads, or more cores"
    ),
    "waiting_line": (
        "Make what {line} waits for faster, or ask for it earlier: the rank waits there for another"
        " process or thread, in {library}, {line_share:.1%} of the steps' time"
    ),
    "line": f"Do less at {{line}}, or not in every step: {_TAKES}; {_HOST}",
    "further_line": (
        f"Do less at {{line}}, or not in every step: it takes {{line_share:.1%}} of the {_TIME}"
    ),
    "span": (
        "Do less in {span}, or not in every step: it takes {share:.1%} of the steps' time; " + _HOST
    ),
    "add_spans": f"Put ioprof.span around the parts of the training loop: {_HOST}",
    "lock": (
        "Move what is computed in Python by {thread}[, at {line},] to a process of its own, or do"
        " less of it: the training loop waited for the interpreter lock meanwhile, at least"
        " {share:.1%} of the steps' time"
    ),
    "flush_less": (
        "Wait less often until writes are on storage (commit or flush once for many steps, or from"
        " another thread): fsync and calls like it took {share:.1%} of the steps' time,"
        " {calls:,.1f} calls a step, {call_s:ms} each[, most of the time for {file:path}][, at"
        " {line}]"
    ),
    "flush_samples": (
        "Do not wait until writes are on storage for a sample (no fsync; a file that is read once"
        " and removed need not be written): fsync and calls like it took {share:.1%} of the steps'"
        " time[, most of it at {line}]"
    ),
    "compile_less": (
        "Compile less (dynamic=True or torch._dynamo.mark_dynamic for sizes that vary; batches of"
        " few lengths; a cache of compiled code, by TORCHINDUCTOR_CACHE_DIR): torch.compile took"
        " {share:.1%} of the steps' time, in {steps} steps, the last of which is step {last_step:,}"
    ),
    "launch_less": (
        'Launch fewer kernels (CUDA graphs, as by torch.compile(mode="reduce-overhead"); larger'
        " batches; an optimizer with fused=True): the device waited for launches for {share:.1%} of"
        " the time, {kernels:,.0f} kernels a step, median {kernel_s:µs}[, most of them at {line}]"
    ),
    # ------------------------------------------------------------------------ of other causes
    "copy_results": (
        f"Copy results to the host less often{_AT}, or reduce them on the device first (a mean or"
        " an"
        " argmax there): a step waits {step_s:ms} for {num_bytes:MB} from the device"
    ),
    "pin_results": (
        "Copy results into page-locked memory that is kept (torch.empty(...,"
        " pin_memory=True).copy_(..., non_blocking=True)), and read them a step later: copies to"
        " pageable memory are slower, and the loop waits for each; a step waits {step_s:ms} for"
        " {num_bytes:MB} from the device"
    ),
    "pin_memory": f"{{option.pinned_copies}}: {CAUSES[Reason.INCLUDES_PAGEABLE_COPIES]}",
    "copy_less": (
        "Copy fewer bytes per sample (uint8 instead of float32, converted on the device), or use a"
        " device with a faster link: copies took {copied_s:,.2f} s, more than the"
        " {computed_s:,.2f} s of computing, so that not all of them can be hidden"
    ),
    "copy_ahead": (
        "Copy from pinned memory on a stream of its own, one batch ahead: [{hidden:.0%} of the"
        " copies|too few copies] are hidden behind compute, and a step waits {step_s:ms} for copies"
    ),
    "flat_sum": (
        "Sum all gradients by one all_reduce of a flat tensor, or let DistributedDataParallel do"
        " so:"
        " a step makes {sums} of them, half of at most {median_bytes:kB1}; a step waits {step_s:ms}"
        " for the gradient exchange"
    ),
    "exchange_once": (
        "Exchange gradients once for each step of the optimizer (no_sync() of the model around all"
        " but its last backward pass): now it is done {times} times; a step waits {step_s:ms} for"
        " the gradient exchange"
    ),
    "exchange_less": (
        "Exchange gradients less often: a step waits {step_s:ms} for the gradient"
        f" exchange{_BATCH}; twice as large batches halve the exchanges per sample"
    ),
    "late_rank": (
        "Look at what rank {rank} does before [{messages:if}it sends its messages|the exchange]:"
        " the"
        " others waited {waited_s:.2f} s for it, {late_s:.2f} s of that for its {late_by:words}[;"
        " its batches are {larger:.1f} times as large as those of the others: divide the samples so"
        " that each rank gets as much in each step]"
    ),
    "equal_ranks": (
        "Give all ranks as much work in each step: rank {rank} was waited for {waited_s:.2f} s and"
        " rank {second} {second_s:.2f} s, so which one is late changes from step to step"
    ),
    "ranks_in_turn": (
        "Let the ranks compute at the same time: each computed for about as long ({least_s:.2f} s"
        " to"
        " {most_s:.2f} s), but waited for the others' messages for {share:.1%} of the time, as"
        " stages of a pipeline do that pass on whole batches. Divide a batch into microbatches, of"
        " which a stage computes one while the next stage has the one before: with {times} times as"
        " many messages waiting takes about {after:.0%}"
    ),
    "equal_stages": (
        "Divide the model so that its stages take the same time: that of rank {rank} computed for"
        " {took_s:.2f} s, the others for {mean_s:.2f} s (mean)"
    ),
    "microbatches": (
        "Use more microbatches ({option.microbatches}): with {parts} and {stages} stages of the"
        " same"
        " time bubbles take {bubbles:.1%}, with {more} they take {after:.1%}"
    ),
    "validate_less": (
        "Validate less often, or on fewer batches: [{by_mode:if}passes in evaluation"
        " mode|validation] took {share:.1%} of the steps' time[, {part_share:.1%} on"
        f" {{part}}]{_LINE}"
    ),
    "checkpoint_less": (
        "Write checkpoints less often, to faster storage, or while training goes on: a step spends"
        f" {{step_s:ms}} in writing them (mean over all steps){_LINE}[; {{checkpoints:,}}"
        " checkpoint{checkpoints:s} of {each_bytes:MB}[ by each of {ranks:,} ranks], at {bytes_per_s:MB}/s[{ranks:if}"  # noqa: E501
        " each][, in {folder:path}]][; {largest_share:.0%} of one is {largest}]"
    ),
    "save_asynchronously": (
        "Save asynchronously (torch.distributed.checkpoint.async_save, or a thread that writes a"
        " copy of the state): {beside_s:,.2f} of the {took_s:,.2f} s for which a checkpoint stops"
        " the training can go on beside the steps; how often to save: ioprof report RUN --mtbf 24h"
    ),
    "pad_to_longest": (
        'Pad each batch to its longest sample (padding="longest" of a tokenizer, in the collate'
        " function), not to a fixed length: {excess:.0%} of the positions are beyond it"
    ),
    "padding": (
        "Put samples of like length into a batch (a sampler that groups by length), or pack several"
        " into one row: {padding:.0%} of the positions that are computed are padding"
    ),
    "keep_memory": (
        "Let the allocator keep freed memory: export MALLOC_TRIM_THRESHOLD_=4000000000"
        " MALLOC_MMAP_MAX_=0 before Python starts (glibc). A step takes"
        " {faults:,} pages of memory from the kernel anew, which then zeroes them"
    ),
    "frames": (
        "Decode fewer frames for each that is used (seek to the key frame before it, shorter clips,"
        " more key frames, or frames stored as images): of {decoded:,} that {library} decoded"
        " {used:,} were used"
    ),
    "keep_cache": (
        _KEEP_WORKERS + ": the dataset keeps data in its workers ({name}, {entries:,} entries"
        " for {samples:,} samples), which is lost when they end with each epoch; a job of more"
        " epochs gains more[{unseen:if}; how much a kept entry saves was not seen, since no worker"
        " used one]"
    ),
    "record_ranks": "{missing:missing_ranks}",
    "gc_called": (
        "Call gc.collect() less often (now: {place})[{together:if}, and at the same step on all"
        " ranks], or gc.freeze() before the first step, after which it looks only at what is newer:"
        " a step spends {step_s:ms} in Python's garbage collector"
    ),
    "gc": (
        "Call gc.freeze() before the first step, or collect between epochs only (gc.disable(),"
        " gc.collect()): a step spends {step_s:ms} in Python's garbage collector[, most of it while"
        " objects are made at {line}: make fewer there, such as one array instead of a list]"
    ),
    "phase": (
        "{phase:phase_actions}[ (now: {line})][ ({file:path})]: it took {took_s:,.1f} s,"
        " {share:.0%} of the job, once per run"
    ),
    # ------------------------------------------------------------------------ of CPU time
    "cpu_quota": (
        "Raise the CPU quota of the job ({quota_cores:.4g} of {cores} cores; docker --cpus,"
        " limits.cpu of Kubernetes, CPUQuota= of systemd): {option.more_workers} would only share"
        " it"
    ),
    "cpu_worker_affinity": (
        "Let the [{of_workers:if}workers|ranks] use more than {affine_cores} of the {cores} cores:"
        " look for taskset, os.sched_setaffinity, the binding of the scheduler (srun"
        " --cpus-per-task, --cpu-bind), OMP_PROC_BIND, KMP_AFFINITY; {option.more_workers} would"
        " only"
        " share these cores"
    ),
    "cpu_threads": (
        "Use fewer threads per process: [{pool:fewer_threads}|set OMP_NUM_THREADS=1 and"
        " MKL_NUM_THREADS=1]; [{pool_threads} threads of {pool} in a process|[{pool:if}Up|up] to"
        " {most_threads} threads in a process] share"
        f" {_CORES}, so {{option.more_workers}} would only add to them"
    ),
    "cpu_processes": (
        f"Leave cores for the ranks: {_BESIDE} computed beside them on {_CORES}; [{{shared:if}}let"
        " each of them compute with one thread: call torch.set_num_threads(1) in it, or start it"
        " with OMP_NUM_THREADS=1|use fewer of them, or let them do less]"
    ),
}
ACTIONS["cpu_rank_affinity"] = ACTIONS["cpu_worker_affinity"]
IF_LATENCY: Final = (
    "If [{of_peer:if}what sends it is bound by latency (not known)|storage is bound by latency (not"
    " known; ioprof probe measures it)], {action:lower}; if it is bound by throughput, workers"
    " share"
    " that, and only fewer bytes per sample help"
)
"""Around an action that helps only then, by the fact `if_latency`."""

FORMS: Final = {
    "own": {
        "storage": "reads from storage",
        "page_cache": "reads served from memory",
        "decode": "decoding",
        "transform": "transforming samples",
        "collate": "collating samples",
        "loader": "its sampler",
    },
    "decoders": {
        "tokens": "Tokenize the text once before training, and store the tokens",
        "packed": "Store the data uncompressed, or compressed by a method that decompresses faster",
        "tables": (
            "Store the data in a form that needs less parsing, in chunks or files as large as"
            " what a"
            " sample needs"
        ),
        "recordings": (
            "Decode less for each sample (a shorter part, reached by a seek, or stored smaller), or"
            " use a faster decoder"
        ),
    },
    "phase_actions": {
        "start-up": (
            "Do less before the first step, for example keep an index of the dataset in a file"
            " instead of making it in each run"
        ),
        "imports": "Copy the Python environment to node-local storage, or import less",
        "interpreter": "Copy the Python environment to node-local storage",
        "launch": "Look at what the launcher does before it starts the ranks",
        "process group": "Look at which process starts last",
        "first batch": (
            "Make the first batch sooner: open the dataset and its index before the workers start,"
            " not in each of them"
        ),
        "loading weights": (
            "Load weights from node-local storage, by a map (safetensors, torch.load(...,"
            " mmap=True)), and no more of them than a rank needs"
        ),
        "restart": "Look at why the ranks failed",
        "between": "Do less between steps",
        "end": "Do less after the last step",
    },
    "missing_ranks": {
        "part": "Make one run of all parts: ioprof gather RUN",
        "launcher": (
            "Record on all hosts: put ioprof behind the launcher, such as: srun ioprof record --out"
            " RUN -- COMMAND"
        ),
        "hidden": (
            "Record all processes: TMPDIR=FOLDER ioprof record ..., with a folder that has the same"
            " path in the container and can be written"
        ),
        "unknown": (
            "Record all ranks: start ioprof record on each host, with the same --out, and gather"
            " the parts: ioprof gather RUN"
        ),
    },
    "fewer_threads": {
        "OpenCV": "call cv2.setNumThreads(0) in worker_init_fn",
        "torch": "call torch.set_num_threads(1) in each worker, or set OMP_NUM_THREADS=1",
        "numexpr": "set NUMEXPR_NUM_THREADS=1",
    },
}
"""Words for values of facts."""

_PROCESSES: Final = (
    "[{added} more worker{added:s} per rank, each with the dataset object and its batches in"
    " memory|nothing]"
)
PRICES: Final = {
    "workers": _PROCESSES,
    "workers_of_shards": _PROCESSES,
    "prefetch": "memory for {more_batches} more batch{more_batches:es} per rank",
    "persistent_workers": "the memory of the workers between epochs",
    "validation_workers": "the memory of the workers between epochs",
    "keep_memory": "a setting; the process keeps the most memory that it ever used",
    "flat_sum": "work on the code, once",
    "exchange_once": "work on the code, once",
    "requests_together": "work on the code, once",
    "smaller_tasks": "work on the code, once",
    "divide_data": "work on the code, once",
    "cores": "larger nodes, or more of them",
    "device": "another model or device",
}
"""What a change costs, by its code; by its cause where it has none here."""
PRICES_OF_CAUSES: Final = {
    "storage": "another device, space and time for a copy, or work on the code",
    "page_cache": "a conversion of the dataset, once",
    "decode": "a conversion of the dataset, once, or another decoder",
    "exchange": "other results of the training, if the batch size changes",
    "checkpoint": "less often: more work is lost if the job fails",
    "validation": "less often: later news of how training goes",
}
PRICE_OF_SETTING: Final = "a setting"
OTHER_PRICE: Final = "work on the code, once"

REASONS: Final = {
    NoGain.RUN_TOO_LARGE: (
        "a replay of so many spans or ranks takes long; ask for it: ioprof report RUN --gains"
    ),
    NoGain.BASELINE_ERROR: (
        "the replay of the run itself is wrong: its steps are {baseline_error:off}"
    ),
    NoGain.NOT_MODELLED: "the replay does not model this change",
    NoGain.NOT_OF_STEPS: (
        "it is time of the job outside of its steps, which the replay does not cover"
    ),
    NoGain.OF_RECORDING: "it shows more, and changes nothing in the job",
    NoGain.DISAGREES: (
        "the replay finds nothing to gain in what took most of the time, so one of the two is wrong"
    ),
}
"""Why there is no gain, where nothing more is known than the code, and the error of the replay."""
REASONS_OF_CODES: Final = {
    "first_epoch": (
        "it is time of the first epoch alone, so that a job gains the less the more epochs it has"
    ),
}
