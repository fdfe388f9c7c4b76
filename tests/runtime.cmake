# Tests of runtime/: pure parts, then ranks as threads, then processes.
kolo_add_test(negotiation_test TIMEOUT 120)
kolo_add_test(session_test THREADS)
kolo_add_test(random_session_test THREADS TIMEOUT 300)
kolo_add_test(rank_set_test)
kolo_add_test(wire_test)
