#include "peers.h"

#include "decimal.h"
#include "host_names.h"
#include "processes.h"
#include "string_table.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LEAST_SOCKET_BYTES 65536
#define LEAST_PIPE_BYTES 16384
#define LEAST_MEAN_BYTES 256
#define MANY_CALLS 1024
#define NUM_ADDRESSES 256
#define NAME_BYTES 256

static const struct peer undecided = {PEER_UNDECIDED, -1}, internal = {PEER_INTERNAL, -1};

/* ------------------------------------------------------------------ libraries that communicate */

/* Beginnings of the names of libraries whose sockets connect the parts of a job, without the "lib"
 * that all but the last begin with: torch with gloo and its store, NCCL, MPI, UCX, ZeroMQ of
 * notebooks. Torch's libraries have an underscore or a dot after the word, torchcodec and
 * torchaudio have not. */
static const char *const communication_libraries[] = {
    "torch_", "torch.", "c10", "gloo",   "nccl", "rccl", "mpi",   "open-",   "pmi",        "prrte",
    "ucp.",   "uct.",   "ucs", "fabric", "psm",  "zmq",  "sharp", "mscclpp", "tensorpipe",
};

/* Called at each receipt of an undecided socket: nearly every comparison ends at the first letter,
 * without a call. */
static inline bool begins_with(const char *name, const char *beginning)
{
    while (*beginning != '\0' && *name == *beginning) {
        name++;
        beginning++;
    }
    return *beginning == '\0';
}

/* _dl_find_object (glibc 2.35) takes no lock. */
const char *library_at(const void *address)
{
#ifdef DLFO_STRUCT_HAS_EH_DBASE
    extern int _dl_find_object(void *, struct dl_find_object *) __attribute__((weak));
    struct dl_find_object object;
    if (_dl_find_object != NULL)
        return _dl_find_object((void *)(uintptr_t)address, &object) == 0
                   ? object.dlfo_link_map->l_name
                   : NULL;
#endif
    Dl_info information;
    return dladdr(address, &information) != 0 ? information.dli_fname : NULL;
}

static bool is_communication_library(const void *caller)
{
    const char *path = caller == NULL ? NULL : library_at(caller);
    if (path == NULL)
        return false;
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    if (!begins_with(name, "lib"))
        return begins_with(name, "mpi_lib");
    for (size_t place = 0; place < sizeof communication_libraries / sizeof *communication_libraries;
         place++)
        if (begins_with(name + 3, communication_libraries[place]))
            return true;
    return false;
}

/* -------------------------------------------------------------------------- Internet addresses */

/* What came from one address over all connections: clients that open a connection for each object
 * receive little on each. */
static struct {
    _Atomic uint32_t holder;
    struct {
        uint32_t generation; /* of the recording in which it is known; 0: unused */
        socklen_t length;
        struct sockaddr_storage address;
        struct peer peer;
        struct volume volume;
    } entries[NUM_ADDRESSES];
} addresses;

/* Many small messages are forgotten, so that what is data later is recognised as such. */
static bool is_data(struct volume *volume, uint64_t least)
{
    if (volume->calls > MANY_CALLS)
        *volume = (struct volume){0, 0};
    return volume->bytes >= least && volume->bytes / LEAST_MEAN_BYTES >= volume->calls;
}

static int32_t host_number(int descriptor, const struct sockaddr_storage *address)
{
    char text[HOST_NAME_BYTES + 16] = "tcp://";
    int type = 0;
    socklen_t room = sizeof type;
    if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &room) == 0 && type == SOCK_DGRAM)
        memcpy(text, "udp", 3);
    size_t length = write_host(text + 6, address);
    return text_number(text, 6 + length);
}

static struct peer judge_address(int descriptor, const struct sockaddr_storage *address,
                                 socklen_t length, int64_t got)
{
    uint32_t generation = atomic_load(&ring.generation);
    size_t place = text_hash((const char *)address, length) % NUM_ADDRESSES;
    struct peer peer = undecided;
    if (!try_lock(&addresses.holder))
        return peer; /* another thread is here: decided at the next receipt */
    __auto_type entry = &addresses.entries[place];
    if (entry->generation != generation || entry->length != length ||
        memcmp(&entry->address, address, length) != 0) {
        memset(entry, 0, sizeof *entry);
        entry->generation = generation;
        entry->length = length;
        memcpy(&entry->address, address, length);
        entry->peer = undecided;
    }
    entry->volume.calls++;
    entry->volume.bytes += (uint64_t)got;
    if (entry->peer.verdict == PEER_UNDECIDED && is_data(&entry->volume, LEAST_SOCKET_BYTES))
        entry->peer = (struct peer){PEER_DATA, host_number(descriptor, address)};
    peer = entry->peer;
    unlock(&addresses.holder);
    return peer;
}

/* ------------------------------------------------------------------------ sockets of this host */

static int32_t process_number(const char *what, pid_t pid)
{
    char text[NAME_BYTES];
    char *end = stpcpy(text, what);
    end += program_name(pid, end);
    end = append_decimal(stpcpy(end, " (pid "), (uint64_t)pid);
    *end++ = ')';
    return text_number(text, (size_t)(end - text));
}

/* The peer's process is the one that listened, or that made the pair of sockets (SO_PEERCRED in
 * unix(7)). */
static struct peer judge_local(int descriptor, const struct sockaddr_un *address, socklen_t length)
{
    struct ucred owner;
    socklen_t room = sizeof owner;
    const size_t before = offsetof(struct sockaddr_un, sun_path);
    if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &owner, &room) != 0 ||
        is_internal_process(owner.pid))
        return internal;
    if (length <= before || address->sun_path[0] == '\0')
        return (struct peer){PEER_DATA, process_number("unix socket of ", owner.pid)};
    char text[NAME_BYTES] = "unix:";
    size_t bytes = strnlen(address->sun_path, length - before);
    memcpy(text + 5, address->sun_path, bytes);
    return (struct peer){PEER_DATA, text_number(text, 5 + bytes)};
}

struct peer judge_socket(int descriptor, const void *caller, int64_t got, struct volume *from_here)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    memset(&address, 0, sizeof address);
    if (is_communication_library(caller) ||
        getpeername(descriptor, (struct sockaddr *)&address, &length) != 0)
        return internal;
    if (address.ss_family == AF_INET || address.ss_family == AF_INET6)
        return judge_address(descriptor, &address, length, got);
    if (address.ss_family != AF_UNIX)
        return internal;
    return is_data(from_here, LEAST_SOCKET_BYTES)
               ? judge_local(descriptor, (struct sockaddr_un *)(void *)&address, length)
               : undecided;
}

/* --------------------------------------------------------------------------------------- pipes */

/* Of a FIFO; -1: the pipe has no path. Its text is off the stack before processes are searched. */
static __attribute__((noinline)) int32_t fifo_number(int descriptor)
{
    char text[4200] = "pipe:", link[32] = "/proc/self/fd/";
    *append_decimal(link + 14, (uint64_t)descriptor) = '\0';
    ssize_t length = readlink(link, text + 5, sizeof text - 5);
    return length > 0 && text[5] == '/' ? text_number(text, 5 + (size_t)length) : -1;
}

struct peer judge_pipe(int descriptor, struct volume *from_here)
{
    struct stat status;
    if (!is_data(from_here, LEAST_PIPE_BYTES) || fstat(descriptor, &status) != 0)
        return undecided;
    int32_t fifo = fifo_number(descriptor);
    if (fifo >= 0)
        return (struct peer){PEER_DATA, fifo};
    struct pipe_writer from = find_pipe_writer(status.st_ino);
    if (from.is_internal)
        return internal;
    if (from.pid == 0)
        return (struct peer){PEER_DATA, NAME("pipe from a process that has ended")};
    return (struct peer){PEER_DATA, process_number("pipe from ", from.pid)};
}
