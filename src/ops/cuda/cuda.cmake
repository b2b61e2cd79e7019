# The CUDA backend (cmake/ShoalCuda.cmake).
set(kernels attention attention_decode attention_plain attention_prefill elementwise few_rows lora matmul norm ranking rotary
            sampling weights)
list(TRANSFORM kernels PREPEND cuda/)
list(TRANSFORM kernels APPEND .cu)
shoal_cuda_sources(shoal_ops ${kernels})
target_sources(shoal_ops PRIVATE cuda/cublas_lt.cc cuda/cuda_backend.cc cuda/device_memory.cc cuda/matmul_plans.cc)
