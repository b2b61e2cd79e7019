# Language level, warnings and sanitizers for our own code. Third-party headers are SYSTEM.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Our loops decide rounding: a product and a sum fuse only where a kernel says so, the same on every compiler.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(SHOAL_SANITIZE "" CACHE STRING "address (with undefined) or thread; empty for none")

add_library(shoal_options INTERFACE)
target_compile_options(shoal_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Werror;-ffp-contract=off>)
if(SHOAL_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=address,undefined)
elseif(SHOAL_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=thread)
  add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

find_program(SHOAL_CCACHE ccache)
if(SHOAL_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SHOAL_CCACHE})
endif()
