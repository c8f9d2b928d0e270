# find_package(Caffe): defines the target `caffe` and Caffe_LIBRARIES, which names
# it. Definitions, include directories and libraries come with the target.
include(CMakeFindDependencyMacro)
find_dependency(Boost COMPONENTS system thread filesystem python)
if(NOT TARGET caffe)
  include(${CMAKE_CURRENT_LIST_DIR}/CaffeTargets.cmake)
endif()
set(Caffe_LIBRARIES caffe)
