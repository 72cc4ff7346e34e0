"""What was used: counters in each process, their log, the verdict; and repairs of what a restore cannot repair.

    watch        notices when a module of torch or Triton has been imported, and hands it to
      kernels      Triton's cache, counted
      inductor     Inductor's and AOTAutograd's caches, counted
      compilers    C++ compilers and ptxas, counted
      relocation   repair: autotuners that name the directory they were made in
      choices      repair: kernels that forget that they were tuned
      headers      repair: a precompiled header that nothing needs
      toolchain    repair: torch's choice of ptxas, made late
      ir           repair: a kernel that was restored without its IR, and is asked for it
    files        what is read from a live directory, within bounds
    activity     the log of one process, which they write to
    graphs       what the keys of known graphs were made of
    history      the logs of many processes, added up
    verdict      warm, partly warm, inert or cold, and why
    runs         both, for a report
    page         the same for a browser

A torch or Triton whose inside differs costs a counter or a repair, never a job: what could not be watched is
`unknown`, not zero.
"""
