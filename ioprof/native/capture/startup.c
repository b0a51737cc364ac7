/* The constructor of the library, which reads the environment, and the destructor. */
#include "environment.h"
#include "file_systems.h"
#include "io_counters.h"
#include "process.h"
#include "python_start.h"
#include "real.h"
#include "switches.h"
#include "waits.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/utsname.h>

/* Variables that give a process its rank, most reliable first. A launcher that a scheduler
 * numbered, such as torchrun, is no rank: the reader decides about those. */
static const struct {
    const char *variable;
    enum ioprof_rank_source source;
} rank_variables[] = {
    {"RANK", RANK_SOURCE_TORCH},
    {"OMPI_COMM_WORLD_RANK", RANK_SOURCE_MPI},
    {"MV2_COMM_WORLD_RANK", RANK_SOURCE_MPI},
    {"PMIX_RANK", RANK_SOURCE_PMI},
    {"PMI_RANK", RANK_SOURCE_PMI},
    {"SLURM_PROCID", RANK_SOURCE_SCHEDULER},
};

static bool is_one_task_of_several(void)
{
    const char *tasks = getenv("SLURM_NTASKS");
    return tasks != NULL && atol(tasks) > 1;
}

static void find_rank(void)
{
    file_header.rank = -1;
    for (size_t place = 0; place < sizeof rank_variables / sizeof *rank_variables; place++) {
        const char *text = getenv(rank_variables[place].variable);
        char *end;
        long rank = text == NULL ? -1 : strtol(text, &end, 10);
        if (text == NULL || end == text || *end != '\0' || rank < 0 || rank > INT32_MAX)
            continue;
        if (rank_variables[place].source == RANK_SOURCE_SCHEDULER && !is_one_task_of_several())
            continue;
        file_header.rank = (int32_t)rank;
        file_header.rank_source = rank_variables[place].source;
        return;
    }
}

static bool is_switched_on(const char *variable)
{
    const char *text = getenv(variable);
    return text == NULL || strcmp(text, "off") != 0;
}

/* The environment is read here and never again: another thread of the job may change it later. */
static enum recording_mode read_environment(void)
{
    const char *folder = getenv("IOPROF_SPOOL");
    struct utsname system;
    if (folder == NULL || folder[0] != '/' || strlen(folder) >= sizeof spool || uname(&system) != 0)
        return MODE_OFF;
    spool_length = strlen(folder);
    memcpy(spool, folder, spool_length + 1);
    may_use_nowait = is_switched_on("IOPROF_CAPTURE_NOWAIT");
    file_header = (struct ioprof_file_header){.magic = IOPROF_MAGIC_BYTES,
                                              .version = IOPROF_FORMAT_VERSION,
                                              .record_bytes = IOPROF_RECORD_BYTES,
                                              .chunk_bytes = IOPROF_CHUNK_BYTES,
                                              .header_bytes = IOPROF_HEADER_BYTES,
                                              .worker = -1,
                                              .role = ROLE_OTHER,
                                              .writer = WRITER_CAPTURE_LIBRARY};
    memcpy(file_header.host, system.nodename, strnlen(system.nodename, sizeof file_header.host));
    find_rank();
    if (ring_setup() != 0 || !map_process_state() ||
        pthread_atfork(count_fork, NULL, reset_process_state) != 0)
        return MODE_OFF;
    return MODE_ON;
}

/* Only the constructor sets the mode: before it, the C library may not have set up the environment
 * yet. */
static __attribute__((constructor)) void begin_program(void)
{
    int saved_errno = begin_own_work();
    atomic_store(&recording_mode, read_environment());
    if (atomic_load(&recording_mode) == MODE_ON) {
        clock_setup();
        if (is_switched_on("IOPROF_CAPTURE_WATCH"))
            switches_setup();
        for (int function = 0; function < NUM_REAL; function++)
            if (function < REAL_io_uring_queue_init ||
                function > REAL_io_uring_setup) /* see hooks_syscall.c */
                real_address(function); /* dlsym may allocate, which is better done now than within
                                           a read of the job */
        waits_setup();
        keep_environment();
        if (site_folder() != NULL)
            start_isolated_python(site_folder());
        program_is_python = is_python();
        program_pid = (uint32_t)real_system_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
    }
    end_own_work(saved_errno);
}

/* Destructors of other libraries may still read after this one: those reads are recorded all the
 * same. */
static __attribute__((destructor)) void end_program(void)
{
    emit_exit();
    compare_at_end(true);
}
