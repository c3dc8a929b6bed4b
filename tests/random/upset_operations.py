"""What happens to a file system from outside: caches dropped, mounted anew, the server restarted or killed, gc, fsck.

After each the files that are open must still work, and what is looked at next must be as before."""


class UpsetOperations:
    WEIGHTS = {}            # chosen by their own rate, not by weight

    def upset_drop_caches(self):
        self.say("drop the kernel's caches")
        self.target.drop_caches()
        for inode in self.rng.sample(self.model.alive, min(4, len(self.model.alive))):
            self.touch(inode)

    def upset_remount(self):
        self.say("close all files, umount, mount, compare everything")
        self.let_all_go()
        self.target.remount()
        for inode in self.model.alive:
            inode.unsettled = False
        self.check_tree()

    def upset_restart_server(self):
        self.say("restart the server")
        self.target.restart_server()
        self._touch_handles()

    def upset_kill_server(self):
        self.say("kill -9 the server, start it")
        self.target.kill_server()
        self._touch_handles()

    def _touch_handles(self):
        for handle in self.handles:
            self.touch(handle.inode)

    def upset_gc(self):
        self.say("gc")
        self.target.gc()
        self._touch_handles()

    def upset_fsck(self):
        self.say("fsck while in use")
        self.target.fsck()
