// A stand-in for NVIDIA's libcuda.so.1, compiled against the real header cuda.h, so that a function with another signature does not compile.
// Environment variables say what it has: FAKE_CUDA_VERSION (13000), FAKE_CUDA_DEVICES (number), FAKE_CUDA_MAJOR, FAKE_CUDA_MINOR,
// FAKE_CUDA_MODE, FAKE_CUDA_INIT (result of cuInit).
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text ? atoi(text) : otherwise;
}

CUresult cuInit(unsigned int flags) {
    return flags ? CUDA_ERROR_INVALID_VALUE : (CUresult)number("FAKE_CUDA_INIT", number("FAKE_CUDA_DEVICES", 1) ? 0 : CUDA_ERROR_NO_DEVICE);
}

CUresult cuDriverGetVersion(int* version) {
    *version = number("FAKE_CUDA_VERSION", 13000);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    *count = number("FAKE_CUDA_DEVICES", 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal + 40;  // a handle need not be the ordinal
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
    if (device < 40) return CUDA_ERROR_INVALID_DEVICE;
    strncpy(name, "Fake H200", (size_t)size);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {  // cuda.h renames it to cuDeviceTotalMem_v2
    *bytes = (size_t)141 << 30;
    return device < 40 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    if (device < 40) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = number("FAKE_CUDA_MAJOR", 9); return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = number("FAKE_CUDA_MINOR", 0); return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = number("FAKE_CUDA_MODE", CU_COMPUTEMODE_DEFAULT); return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH ? "system has unsupported display driver / cuda driver combination" : "an error";
    return CUDA_SUCCESS;
}
