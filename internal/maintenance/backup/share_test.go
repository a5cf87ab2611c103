package backup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
)

// fileServer starts smbd with one share, and gives its address and the folder
// behind the share.
func fileServer(t *testing.T, password string) (addr, user_, folder string) {
	t.Helper()
	smbd, err := exec.LookPath("smbd")
	if err != nil {
		smbd = "/usr/sbin/smbd"
	}
	smbpasswd, e := exec.LookPath("smbpasswd")
	if _, err := os.Stat(smbd); err != nil || e != nil {
		t.Skip("there is no smbd here")
	}
	me, err := user.Current()
	if err != nil || me.Uid != "0" {
		t.Skip("smbd is started as root")
	}
	top := t.TempDir()
	folder = filepath.Join(top, "share")
	for _, d := range []string{"share", "private", "lock", "state", "cache", "pid", "rpc"} {
		if err := os.Mkdir(filepath.Join(top, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	l.Close()
	conf := filepath.Join(top, "smb.conf")
	text := fmt.Sprintf(`[global]
server role = standalone server
interfaces = lo
bind interfaces only = yes
smb ports = %[2]s
private dir = %[1]s/private
lock directory = %[1]s/lock
state directory = %[1]s/state
cache directory = %[1]s/cache
pid directory = %[1]s/pid
ncalrpc dir = %[1]s/rpc
passdb backend = tdbsam:%[1]s/private/passdb.tdb
log file = %[1]s/log
disable spoolss = yes
load printers = no
map to guest = never
[backups]
path = %[1]s/share
read only = no
`, top, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set := exec.Command(smbpasswd, "-c", conf, "-s", "-a", me.Username)
	set.Stdin = strings.NewReader(password + "\n" + password + "\n")
	if out, err := set.CombinedOutput(); err != nil {
		t.Skipf("smbd cannot be given a user here: %v\n%s", err, out)
	}
	server := exec.Command(smbd, "--foreground", "--no-process-group", "--configfile="+conf, "--debug-stdout")
	server.Stdin = nil
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { server.Wait(); close(ended) }()
	t.Cleanup(func() {
		server.Process.Signal(os.Interrupt)
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			server.Process.Kill()
			<-ended
		}
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr, me.Username, folder
		}
		select {
		case <-ended:
			said, _ := os.ReadFile(filepath.Join(top, "log"))
			t.Skipf("smbd does not run here: %s", said)
		default:
		}
		if time.Now().After(end) {
			t.Skip("smbd does not listen here")
		}
	}
}

func TestAShareHoldsBackups(t *testing.T) {
	const login = "pass-of-the-share"
	addr, who, behind := fileServer(t, login)
	m := newMachine(t, "host_a")
	store := secret.In(m.Config, "")
	if err := errors.Join(store.Set("NAS", secret.New(login)),
		store.Set("WRONG", secret.New("another-one"))); err != nil {
		t.Fatal(err)
	}
	target := Target{
		Name:   "nas",
		Kind:   SMB,
		Host:   addr,
		Share:  "backups",
		User:   who,
		Secret: "NAS",
		Path:   "hosts/house",
		Keep:   1,
	}
	if err := m.backups.SetTarget(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Target){
		"log in":         func(t *Target) { t.Secret = "WRONG" },
		"open the share": func(t *Target) { t.Share = "nothing" },
	} {
		bad := target
		change(&bad)
		if err := m.backups.SetTarget(t.Context(), bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	text := incompressible(6 << 20)
	m.put(m.Data, "large", text)
	var last string
	for range 2 {
		m.now = m.now.Add(time.Hour)
		made, err := m.backups.Create(t.Context(), "nas", key(password), nil)
		if err != nil || made.Left != nil {
			t.Fatal(err, made.Left)
		}
		last = made.Name
	}
	dir := filepath.Join(behind, "hosts", "house")
	if got := names(t, dir); !slices.Equal(got, []string{last}) {
		t.Errorf("the share holds %v, want %s alone", got, last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := m.backups.Create(ctx, "nas", key(password), func(phase string, done, _ int64) {
		if phase == PhaseWrite && done > 3<<20 {
			cancel()
		}
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{last}) {
		t.Errorf("after an interruption the share holds %v", got)
	}
	m.put(m.Data, "large", "changed")
	if _, _, err := m.backups.Restore(t.Context(), "nas", "", key(password), nil); err != nil {
		t.Fatal(err)
	}
	done, leave, err := Enter(m.Folders, quiet)
	if err != nil || done == nil {
		t.Fatal(done, err)
	}
	leave()
	if all(t, m.Data)["large"] != text {
		t.Error("the large file is another one")
	}
}
