#include "programs.h"

#include "guard.h"
#include "process.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEGINNING_BYTES 4096 /* of a program: the ELF header and its program headers */

/* Programs that have another process start a command, with an environment of its own or on another
 * host. */
static const char *const launchers[] = {
    "docker", "podman", "nerdctl", "apptainer", "singularity", "enroot",      "shifter", "sarus",
    "sudo",   "su",     "doas",    "runuser",   "ssh",         "systemd-run", "kubectl", "srun",
};

static bool is_launcher(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    for (size_t place = 0; place < sizeof launchers / sizeof *launchers; place++)
        if (strcmp(name, launchers[place]) == 0)
            return true;
    return false;
}

/* Whether an ELF file names no dynamic linker. One whose headers are not at its beginning counts as
 * dynamic. */
static bool is_static(const char *beginning, size_t length)
{
    Elf64_Ehdr header;
    memcpy(&header, beginning, sizeof header);
    if (header.e_phoff + (uint64_t)header.e_phnum * sizeof(Elf64_Phdr) > length ||
        header.e_phentsize != sizeof(Elf64_Phdr))
        return false;
    for (int place = 0; place < header.e_phnum; place++) {
        Elf64_Phdr part;
        memcpy(&part, beginning + header.e_phoff + (size_t)place * sizeof part, sizeof part);
        if (part.p_type == PT_INTERP)
            return false;
    }
    return true;
}

static const char *examine(int descriptor)
{
    char beginning[BEGINNING_BYTES];
    struct stat status;
    if (fstat(descriptor, &status) == 0 &&
        (((status.st_mode & S_ISUID) && status.st_uid != geteuid()) ||
         ((status.st_mode & S_ISGID) && status.st_gid != getegid())))
        return "setuid program";
    ssize_t length = read(descriptor, beginning, sizeof beginning);
    if (ioprof_guard <
        GUARD_VFORK) { /* else the kernel counts it for the child, whose memory is its parent's */
        atomic_fetch_add(&process->own_calls, 1);
        atomic_fetch_add(&process->own_bytes, length > 0 ? length : 0);
    }
    if (length < (ssize_t)sizeof(Elf64_Ehdr) || memcmp(beginning, ELFMAG, SELFMAG) != 0)
        return NULL;
    if (beginning[EI_CLASS] == ELFCLASS32)
        return OTHER_CLASS;
    return is_static(beginning, (size_t)length) ? "static program" : NULL;
}

/* A program that can be executed but not read is not examined. */
static int open_program(const char *path)
{
    char found[PATH_MAX];
    const char *place = strchr(path, '/') != NULL ? NULL : getenv("PATH");
    int descriptor = place == NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    while (place != NULL && descriptor < 0 && *place != '\0') {
        size_t length = strcspn(place, ":"), rest = strlen(path);
        if (length > 0 && length + rest + 2 <= sizeof found) {
            memcpy(found, place, length);
            found[length] = '/';
            memcpy(found + length + 1, path, rest + 1);
            descriptor = open(found, O_RDONLY | O_CLOEXEC);
        }
        place += length + (place[length] == ':');
    }
    return descriptor;
}

const char *why_not_followed(const char *path)
{
    int descriptor = open_program(path);
    if (descriptor < 0)
        return NULL;
    const char *reason = examine(descriptor);
    close(descriptor);
    return reason == NULL && is_launcher(path) ? "launcher" : reason;
}
