# find_package(zero) makes the targets zero::zero, the shared library, and zero::static.
get_filename_component(_zero_prefix "${CMAKE_CURRENT_LIST_DIR}" REALPATH)
get_filename_component(_zero_prefix "${_zero_prefix}/../../.." ABSOLUTE)

if(NOT TARGET zero::zero)
  add_library(zero::zero SHARED IMPORTED)
  set_target_properties(zero::zero PROPERTIES
    IMPORTED_LOCATION "${_zero_prefix}/lib/libzero.so.@ABI@"
    IMPORTED_SONAME "libzero.so.@ABI@"
    INTERFACE_INCLUDE_DIRECTORIES "${_zero_prefix}/include")
  add_library(zero::static STATIC IMPORTED)
  set_target_properties(zero::static PROPERTIES
    IMPORTED_LOCATION "${_zero_prefix}/lib/libzero.a"
    IMPORTED_LINK_INTERFACE_LANGUAGES "C"
    INTERFACE_INCLUDE_DIRECTORIES "${_zero_prefix}/include"
    INTERFACE_LINK_LIBRARIES "json-c;sodium;uring;gomp;pthread;dl;m")
endif()
unset(_zero_prefix)
