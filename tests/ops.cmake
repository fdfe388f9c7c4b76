# Tests of ops/: element kernels, memory that ranks share, and the backends.
kolo_add_test(signature_test)
kolo_add_test(float16_test)
kolo_add_test(shm_store_policy_test)
kolo_add_test(reduce_test)
kolo_add_test(adasum_weights_test)
kolo_add_test(adasum_test THREADS TIMEOUT 120)
kolo_add_test(adasum_mpi_test RANKS 1 2 3 4 NODES 2,2 3,1)
kolo_add_test(segment_test)
set(fake_gpu fake_gpu.cc)  # in place of no_cuda.cc
kolo_add_test(packer_test SOURCES ${fake_gpu} THREADS)
set(fake_nccl ${fake_gpu} fake_nccl.cc)  # and of no_nccl.cc
kolo_add_test(nccl_backend_test SOURCES ${fake_nccl} THREADS TIMEOUT 300)
kolo_add_test(staged_backend_test SOURCES ${fake_gpu} THREADS TIMEOUT 300)
kolo_add_test(nccl_plan_test)
kolo_add_test(nccl_calls_test SOURCES ${fake_nccl} THREADS)
kolo_add_test(device_backend_mpi_test RANKS 1 2 TIMEOUT 300 RELEASE_ONLY)  # skipped without a GPU
kolo_add_test(gpu_session_test SOURCES ${fake_nccl} THREADS TIMEOUT 120)
kolo_add_test(region_test THREADS)
kolo_add_test(registry_test)
kolo_add_test(nodes_backend_test RANKS 2 3 4 5 TIMEOUT 200 RELEASE_ONLY)
kolo_add_test(local_backend_test THREADS TIMEOUT 300)
kolo_add_test(shm_backend_test THREADS TIMEOUT 300)
kolo_add_test(mpi_backend_test RANKS 1 2 3 4 TIMEOUT 300 RELEASE_ONLY)  # under sanitizers it takes minutes; its code runs there in collectives_mpi_test
kolo_add_test(shm_backend_mpi_test RANKS 1 2 3 TIMEOUT 300 RELEASE_ONLY)  # under sanitizers shm_backend_test runs its code
