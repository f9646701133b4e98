/* Just enough of libnvidia-ml.so.1 for pynvml. The state is read again from $NVML_STATE on every call, so that a test can
 * lose a GPU while the probe runs: "count lost_index hang_ms". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int count, lost, hang_ms;

static void look(void) {
    count = 0, lost = -1, hang_ms = 0;
    FILE *f = fopen(getenv("NVML_STATE"), "r");
    if (!f) return;
    if (fscanf(f, "%d %d %d", &count, &lost, &hang_ms) < 1) count = 0;
    fclose(f);
    if (hang_ms) usleep(hang_ms * 1000);
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "some error"; }
int nvmlDeviceGetCount_v2(unsigned *n) { look(); *n = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    look();
    if ((int)index >= count) return 2;
    if ((int)index == lost) return 15;
    *handle = (void *)(long)(index + 1);
    return 0;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *m) {
    (void)handle;
    m->total = 80ull << 30, m->free = 79ull << 30, m->used = 1ull << 30;
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    const char *name = getenv("NVML_NAME");  // so that two machines in one test have GPUs of their own
    snprintf(text, size, "GPU-%s-%ld", name ? name : "stand-in", (long)handle - 1);
    return 0;
}
int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) { *minor = 8 - (unsigned)(long)handle; return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    (void)handle;
    snprintf(text, size, "NVIDIA H100 80GB HBM3");
    return 0;
}
