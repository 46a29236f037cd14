import subprocess, os, signal, time, collections, re
from launcher import *
NAMES="openat,write,writev,pwrite64,pwritev,fsync,fdatasync,link,linkat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,ftruncate,fallocate,utimensat,close,flock,fcntl"
def test_x(bench, require):
  for where in ("start","opened"):
    bench=type(bench)(bench.launcher, bench.folder/where)
    bench.pipeline="solo"; bench.settings={"slots":1}
    r=bench.start(stop=where)
    until(lambda: state(r.pid)=="T", "stop")
    print(r.guardians())
    log=bench.folder/"trace"
    t=time.monotonic()
    if where=="start":
        cmd=["strace","-o",str(log),"-p",str(r.pid),"-e","trace="+NAMES]
    else:
        cmd=["strace","-f","-o",str(log),"-p",str(r.guardians()[1]),"-e","trace="+NAMES]
    s=subprocess.Popen(cmd,stderr=subprocess.PIPE)
    line=s.stderr.readline()
    print(line, time.monotonic()-t)
    os.kill(r.pid, signal.SIGCONT)
    r.wait(20); print(time.monotonic()-t)
    s.wait(5)
    c=collections.Counter(m[1] for m in re.finditer(r'^(?:\d+ +)?(\w+)\(', log.read_text(), re.M))
    print(c)
    print(log.read_text()[:200000])
