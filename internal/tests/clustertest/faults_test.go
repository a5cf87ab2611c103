package clustertest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// field is three machines with a member each, and what can fail of them.
type field struct {
	t        *testing.T
	net      *network
	machines []*machine
	servers  []*machine // with engines that no member starts; none if they are embedded
	http     http.Client
	lease    time.Duration

	mu sync.Mutex // guards taken of machines
}

// machine is one machine: its processes are killed, paused and lose their disk together.
type machine struct {
	name    string
	id      string // of its node, until it loses its disk
	dir     string
	listen  string // of its engine
	reached string // address of its engine for others
	control string
	program string
	options string
	cmd     *exec.Cmd
	stdin   io.Closer // of an engine that no member starts
	output  *lockedBuffer
	taken   bool // it is off or paused, until the fault ends
}

// newField starts three members. With external, three engines run beside them.
func newField(t *testing.T, external bool) *field {
	t.Helper()
	return newFieldIn(t, t.TempDir(), external)
}

// newFieldIn is newField with the disks of the machines below a folder.
func newFieldIn(t *testing.T, dir string, external bool) *field {
	t.Helper()
	f := &field{t: t, net: newNetwork(t), http: http.Client{Timeout: 20 * time.Second}, lease: 2 * time.Second}
	program := filepath.Join(engine(t), "gatehouse-nats")
	for i := range 3 {
		m := &machine{
			name: fmt.Sprint("m", i), id: strings.Repeat(string(rune('a'+i)), 10), program: program,
			listen: ownAddress(t), control: ownAddress(t), output: &lockedBuffer{},
		}
		m.dir = filepath.Join(dir, m.name)
		m.reached = f.net.listen(t, "", m.name, m.listen)
		f.machines = append(f.machines, m)
	}
	if external {
		f.startServers(dir)
	}
	for i, m := range f.machines {
		o := memberOptions{
			Dir: m.dir, Listen: m.listen, Advertise: m.reached, Program: program, Control: m.control, Lease: f.lease,
		}
		for _, s := range f.servers {
			o.External += "," + "nats://" + f.net.listen(t, m.name, s.name, s.control)
		}
		o.External = strings.TrimPrefix(o.External, ",")
		for k, other := range f.machines {
			if k != i {
				o.Join = append(o.Join, other.reached)
			}
		}
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		m.options = string(raw)
		if !external {
			f.net.names[m.id] = m.name
		}
		m.nameNode(t)
	}
	t.Cleanup(func() {
		for _, m := range append(f.machines, f.servers...) {
			m.kill()
			if t.Failed() {
				text := m.output.String()
				t.Logf("%s says:\n%s", m.name, text[max(0, len(text)-60_000):])
			}
		}
	})
	for _, m := range append(f.servers, f.machines...) {
		m.start(t)
	}
	f.await("all members serve", f.recovered)
	return f
}

// nameNode gives a node its id before its first start, by which the network knows its engine.
func (m *machine) nameNode(t *testing.T) {
	folder := filepath.Join(m.dir, "cluster")
	err := os.MkdirAll(folder, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, "node.json"),
			fmt.Appendf(nil, `{"id":%q,"cluster":"test"}`, m.id), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// startServers prepares engines as an operator would run them.
func (f *field) startServers(dir string) {
	for i := range 3 {
		s := &machine{
			name: fmt.Sprint("s", i), listen: ownAddress(f.t), control: ownAddress(f.t),
			program: f.machines[0].program, output: &lockedBuffer{},
		}
		s.dir = filepath.Join(dir, s.name)
		s.reached = f.net.listen(f.t, "", s.name, s.listen)
		f.net.names[s.name] = s.name
		f.servers = append(f.servers, s)
	}
	for i, s := range f.servers {
		var routes []string
		for k, other := range f.servers {
			if k != i {
				routes = append(routes, "nats-route://"+other.reached)
			}
		}
		raw, err := json.Marshal(map[string]any{
			"server_name": s.name, "listen": s.control, "ping_interval": "1s", "ping_max": 2, "max_payload": 8 << 20,
			"cluster": map[string]any{
				"name": "outside", "listen": s.listen, "cluster_advertise": s.reached, "routes": routes,
				"no_advertise": true, // clients know the addresses of the network, and no others
			},
			"jetstream": map[string]any{"store_dir": s.dir, "sync_interval": "always"},
		})
		if err == nil {
			err = os.MkdirAll(s.dir, 0o700)
		}
		s.options = filepath.Join(dir, s.name+".json")
		if err == nil {
			err = os.WriteFile(s.options, raw, 0o600)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// start starts what runs on a machine, in a group of processes of its own.
func (m *machine) start(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(m.name, "s") {
		m.cmd = exec.Command(m.program, m.options)
		stdin, err := m.cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		m.stdin = stdin
	} else {
		m.cmd = exec.Command(self)
		m.cmd.Env = append(os.Environ(), "GATEHOUSE_TEST_MEMBER="+m.options, "HOME="+m.dir)
	}
	m.cmd.Stdout, m.cmd.Stderr = m.output, m.output
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) signal(s syscall.Signal) {
	if m.cmd != nil {
		syscall.Kill(-m.cmd.Process.Pid, s)
	}
}

// kill ends a machine as the loss of its power does.
func (m *machine) kill() {
	if m.cmd == nil {
		return
	}
	m.signal(syscall.SIGKILL)
	m.cmd.Wait()
	m.cmd = nil
}

// do runs an operation on a member. An error means that nothing is known of its end.
func (f *field) do(m *machine, op operation) (out outcome, err error) {
	op.Until = cmp.Or(op.Until, 4*time.Second)
	raw, err := json.Marshal(op)
	if err != nil {
		return out, err
	}
	answer, err := f.http.Post("http://"+m.control, "application/json", bytes.NewReader(raw))
	if err != nil {
		if refused, ok := errors.AsType[*net.OpError](err); ok && refused.Op == "dial" {
			return outcome{Error: "not run", Text: err.Error()}, nil
		}
		return out, err
	}
	defer answer.Body.Close()
	return out, json.NewDecoder(answer.Body).Decode(&out)
}

// recovered reports whether all members are fresh.
func (f *field) recovered() bool {
	for _, m := range f.machines {
		out, err := f.do(m, operation{Kind: "fresh"})
		if err != nil || !out.OK || out.Error != "" {
			return false
		}
	}
	return true
}

// dump says what each member does, and ends it.
func (f *field) dump(t *testing.T) {
	for _, m := range f.machines {
		out, err := f.do(m, operation{Kind: "fresh"})
		t.Logf("%s: %+v, %v", m.name, out, err)
		if m.cmd != nil {
			m.cmd.Process.Signal(syscall.SIGQUIT)
		}
	}
	time.Sleep(2 * time.Second)
	for _, m := range f.machines {
		if m.cmd != nil {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
			t.Logf("%s: %.200s", m.name, status)
		}
	}
}

func (f *field) await(what string, holds func() bool) {
	f.t.Helper()
	eventually(f.t, what, holds)
}

// fault is one failure, and what ends it.
type fault struct {
	what string
	end  func()
}

// pick returns two different machines between which bytes are sent: members and their engines.
func (f *field) pick(r *rand.Rand) (a, b string) {
	if len(f.servers) > 0 && r.IntN(2) == 0 {
		a, b = f.machines[r.IntN(3)].name, f.servers[r.IntN(3)].name
		if r.IntN(2) == 0 {
			a, b = b, a
		}
		return a, b
	}
	all := f.machines
	if len(f.servers) > 0 {
		all = f.servers
	}
	i := r.IntN(3)
	return all[i].name, all[(i+1+r.IntN(2))%3].name
}

// fail makes something fail.
func (f *field) fail(r *rand.Rand) fault {
	all := append(f.servers, f.machines...)
	one := all[r.IntN(len(all))]
	both := func(a, b string, change func(*link)) {
		f.net.change(a, b, change)
		f.net.change(b, a, change)
	}
	a, b := f.pick(r)
	heal := func() { both(a, b, func(l *link) { *l = link{} }) }
	switch r.IntN(9) {
	case 0:
		both(a, b, func(l *link) { l.cut = true })
		return fault{"cut " + a + "-" + b, heal}
	case 1, 2:
		f.net.change(a, b, func(l *link) { l.cut = true })
		return fault{"cut " + a + ">" + b, heal}
	case 3: // one machine from all others, in one direction or in both
		way := r.IntN(3)
		set := func(l link) {
			for _, other := range all {
				if way != 1 {
					f.net.change(one.name, other.name, func(at *link) { *at = l })
				}
				if way != 2 {
					f.net.change(other.name, one.name, func(at *link) { *at = l })
				}
			}
		}
		set(link{cut: true})
		return fault{fmt.Sprint("cut ", one.name, " way ", way), func() { set(link{}) }}
	case 4:
		d := time.Duration(r.IntN(400)) * time.Millisecond
		both(a, b, func(l *link) { l.delay = d })
		return fault{fmt.Sprint("delay ", a, "-", b, " ", d), heal}
	case 5:
		loss := r.Float64() / 4
		both(a, b, func(l *link) { l.loss = loss })
		return fault{fmt.Sprintf("loss %s-%s %.2f", a, b, loss), heal}
	case 6:
		if f.take(one) {
			one.signal(syscall.SIGSTOP)
			return fault{"pause " + one.name, func() { one.signal(syscall.SIGCONT); f.release(one) }}
		}
	case 7:
		m := f.machines[r.IntN(3)]
		d := time.Duration(r.IntN(48)-24) * time.Hour
		f.do(m, operation{Kind: "clock", Value: d.String(), Until: time.Second})
		return fault{fmt.Sprint("clock ", m.name, " ", d), func() {}}
	}
	if !f.take(one) {
		return fault{"nothing", func() {}}
	}
	one.kill()
	return fault{"kill " + one.name, func() { one.start(f.t); f.release(one) }}
}

// take reports whether a machine runs, and makes it one that does not.
func (f *field) take(m *machine) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := m.taken
	m.taken = true
	return !was
}

func (f *field) release(m *machine) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m.taken = false
}

// powerLoss ends all machines at once and starts them again.
func (f *field) powerLoss() {
	all := append(f.servers, f.machines...)
	for _, m := range all {
		m.signal(syscall.SIGKILL)
	}
	for _, m := range all {
		m.kill()
	}
	for _, m := range all {
		m.start(f.t)
	}
}

// disturb lets things fail for a while, and returns what failed. In the end all is whole again.
func (f *field) disturb(seed uint64, limit time.Duration) (told []string) {
	r := rand.New(rand.NewPCG(seed, 26))
	begin := time.Now()
	var running sync.WaitGroup
	places := make(chan struct{}, 2) // how much is wrong at once
	for time.Since(begin) < limit {
		time.Sleep(time.Duration(r.IntN(800)) * time.Millisecond)
		at := time.Since(begin).Round(time.Millisecond)
		if r.IntN(20) == 0 {
			running.Wait()
			f.powerLoss()
			told = append(told, fmt.Sprint(at, " power of all"))
			continue
		}
		places <- struct{}{}
		bad := f.fail(r)
		last := time.Duration(200+r.IntN(3000)) * time.Millisecond
		told = append(told, fmt.Sprint(at, " ", bad.what, " for ", last))
		running.Go(func() {
			time.Sleep(last)
			bad.end()
			<-places
		})
	}
	running.Wait()
	f.net.heal()
	for _, m := range append(f.servers, f.machines...) {
		m.signal(syscall.SIGCONT)
	}
	return told
}
