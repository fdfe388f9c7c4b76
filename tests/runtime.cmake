# Tests of runtime/: pure parts, then ranks as threads, then processes.
kolo_add_test(negotiation_test TIMEOUT 120)
kolo_add_test(session_test THREADS)
