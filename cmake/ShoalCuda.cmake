# CUDA for the folders that hold .cu files. Kernels are built for sm_80 and sm_90a unless SHOAL_CUDA_ARCHITECTURES says
# otherwise, with PTX for what comes after; cuBLASLt is found at run time, the CUDA runtime is part of the program.
set(SHOAL_CUDA_ARCHITECTURES "80-real;90a-real;90-virtual" CACHE STRING "as CMAKE_CUDA_ARCHITECTURES")
set(CMAKE_CUDA_ARCHITECTURES ${SHOAL_CUDA_ARCHITECTURES})
if(SHOAL_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SHOAL_CCACHE})
endif()
enable_language(CUDA)
# CMake 3.25 does not know these of nvcc 13.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
cmake_path(GET CMAKE_CUDA_COMPILER PARENT_PATH cuda_bin)
cmake_path(GET cuda_bin PARENT_PATH SHOAL_CUDA_ROOT)

# shoal_cuda_sources(TARGET a.cu ...): adds kernels to a target.
function(shoal_cuda_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${SHOAL_CUDA_ARCHITECTURES}" CUDA_STANDARD 20
                                             CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY None)
  # nvcc cannot evaluate fmt's format strings at compile time.
  set_source_files_properties(${ARGN} PROPERTIES
    COMPILE_OPTIONS "-DFMT_USE_CONSTEXPR=1;-DFMT_CONSTEVAL=;--expt-relaxed-constexpr;--extended-lambda")
  target_include_directories(${target} SYSTEM PRIVATE ${SHOAL_CUDA_ROOT}/include)
  target_link_libraries(${target} PUBLIC ${SHOAL_CUDA_ROOT}/lib64/libcudart_static.a ${CMAKE_DL_LIBS} rt)
endfunction()
