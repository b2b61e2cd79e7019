# The CPU kernel sets. Each kernels_<isa>.cc is compiled for its instruction set; everything else here is baseline.
target_sources(shoal_ops PRIVATE
  cpu/cpu_attention.cc cpu/cpu_backend.cc cpu/cpu_lora.cc cpu/cpu_matmul.cc cpu/cpu_ranking.cc cpu/cpu_rows.cc cpu/cpu_sampling.cc
  cpu/isa.cc cpu/kernels_avx2.cc cpu/kernels_avx512.cc cpu/kernels_avx512bf16.cc)

set(SHOAL_AVX2_FLAGS -O3 -mavx2 -mfma -mf16c)
set(SHOAL_AVX512_FLAGS ${SHOAL_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's own AVX-512 header leaves the ignored operand of unmasked instructions uninitialised (GCC bug 105593).
  list(APPEND SHOAL_AVX512_FLAGS -Wno-maybe-uninitialized -Wno-uninitialized)
endif()
if(SHOAL_SANITIZE)
  # At -O3, with a check inlined at each access, one of these files takes many minutes to compile.
  list(APPEND SHOAL_AVX2_FLAGS -O1)
  list(APPEND SHOAL_AVX512_FLAGS -O1)
endif()
if(SHOAL_SANITIZE STREQUAL "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A call for each access finds the same bad addresses; undefined behaviour is left to the files around the kernels.
  set(outline -fno-sanitize=undefined --param=asan-instrumentation-with-call-threshold=0)
  list(APPEND SHOAL_AVX2_FLAGS ${outline})
  list(APPEND SHOAL_AVX512_FLAGS ${outline})
endif()
set_source_files_properties(cpu/kernels_avx2.cc PROPERTIES COMPILE_OPTIONS "${SHOAL_AVX2_FLAGS}")
set_source_files_properties(cpu/kernels_avx512.cc PROPERTIES COMPILE_OPTIONS "${SHOAL_AVX512_FLAGS}")
set_source_files_properties(cpu/kernels_avx512bf16.cc PROPERTIES COMPILE_OPTIONS "${SHOAL_AVX512_FLAGS};-mavx512bf16")

if(BUILD_TESTING)
  add_executable(shoal_ops_cpu_test cpu/cpu_test.cc op_test_util.cc)
  target_link_libraries(shoal_ops_cpu_test PRIVATE shoal_ops shoal_options GTest::gtest GTest::gtest_main)
  foreach(isa avx2 avx512 avx512bf16)
    add_test(NAME ops_cpu_${isa} COMMAND shoal_ops_cpu_test --gtest_filter=*/${isa})
    set_tests_properties(ops_cpu_${isa} PROPERTIES LABELS "unit;per_isa" SKIP_REGULAR_EXPRESSION "skipped: no ${isa}")
  endforeach()
  # That each file holds the instructions that it is named for, and none that its processors lack.
  add_test(NAME ops_cpu_instructions
    COMMAND ${CMAKE_COMMAND} -DOBJDUMP=${CMAKE_OBJDUMP} "-DOBJECTS=$<TARGET_OBJECTS:shoal_ops>"
            -P ${CMAKE_CURRENT_SOURCE_DIR}/cpu/check_instructions.cmake)
  set_tests_properties(ops_cpu_instructions PROPERTIES LABELS "unit;per_isa")
endif()
