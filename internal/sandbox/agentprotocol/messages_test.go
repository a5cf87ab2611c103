package agentprotocol

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// body is a message, and how it is read.
type body struct {
	name  string
	value interface{ Body() []byte }
	parse func([]byte) (interface{ Body() []byte }, error)
}

func parsed[T interface{ Body() []byte }](f func([]byte) (T, error)) func([]byte) (interface{ Body() []byte }, error) {
	return func(b []byte) (interface{ Body() []byte }, error) { return f(b) }
}

func messages() []body {
	return []body{
		{"plan", Plan{
			Hostname:       "h",
			UID:            1000,
			GID:            1000,
			SingleUser:     true,
			Prebuilt:       true,
			DiskBytes:      1 << 30,
			ListenerSocket: 5,
			Proxy:          3128,
			Env:            []string{"A=b", ""},
			Trees:          []Tree{{FD: 7, To: "/usr"}, {From: "/opt", To: "/opt"}},
			Links:          []TextFile{{"/bin", "usr/bin"}},
			Files:          []TextFile{{"/etc/hosts", "x\n"}},
		}, parsed(ParsePlan)},
		{"program", Program{
			Argv:  []string{"sh", "-c", "exit"},
			Env:   []string{"X=y"},
			Dir:   "/tmp",
			Size:  Size{80, 25},
			Lists: `{"Deny":["rm"]}`,
		}, parsed(ParseProgram)},
		{"size", Size{65535, 1}, parsed(ParseSize)},
		{"grant", Grant{Stderr, Window}, parsed(ParseGrant)},
		{"failure", Failure{syscall.ENOENT, "open x: no such file"}, parsed(ParseFailure)},
		{"file work", FileRequest{
			Op:     RenamePath,
			Path:   "a",
			Other:  "b",
			Offset: 5,
			Length: -1,
			Mode:   0o600,
			All:    true,
		}, parsed(ParseFileRequest)},
		{"entry", Info{
			Name:     "\xff\n",
			Link:     "up",
			Size:     9,
			Mode:     0o100644,
			Modified: time.Unix(0, 12345),
		}, parsed(ParseInfo)},
		{"renewal", Renewal{Epoch: "e", Clock: time.Unix(0, 1e18), Entropy: "\x00\xff"}, parsed(ParseRenewal)},
		{"instant", Instant{time.Unix(0, 1e18)}, parsed(ParseInstant)},
		{"port", Port(65535), parsed(ParsePort)},
		{"number", RequestID(1<<32 - 1), parsed(ParseRequestID)},
	}
}

func TestMessagesComeOutAsTheyWentIn(t *testing.T) {
	for _, m := range messages() {
		got, err := m.parse(m.value.Body())
		if err != nil || !reflect.DeepEqual(got, m.value) {
			t.Errorf("%s: got %+v, %v, want %+v", m.name, got, err, m.value)
		}
	}
}

func TestPartsOfMessagesAreNoMessages(t *testing.T) {
	for _, m := range messages() {
		b := m.value.Body()
		if _, err := m.parse(append(bytes.Clone(b), bytes.Repeat([]byte{1}, longestText+1)...)); !errors.Is(err,
			ErrBroken) {
			t.Errorf("%s with more behind it: %v, want ErrBroken", m.name, err)
		}
		if _, err := m.parse(b[:1]); !errors.Is(err, ErrBroken) {
			t.Errorf("the first byte of %s: %v, want ErrBroken", m.name, err)
		}
	}
	for name, err := range map[string]error{
		"a program without a name": second(ParseProgram(Program{}.Body())),
		"work of no kind":          second(ParseFileRequest(FileRequest{Op: afterOps}.Body())),
		"a grant above the window": second(ParseGrant(Grant{Stdout, Window + 1}.Body())),
		"port 0":                   second(ParsePort(Port(0).Body())),
		"a renewal of no epoch":    second(ParseRenewal(Renewal{}.Body())),
		"too much entropy": second(ParseRenewal(Renewal{Epoch: "e",
			Entropy: strings.Repeat("x", longestRandom+1)}.Body())),
		"a grant for no stream": second(ParseGrant(Grant{Exit, 1}.Body())),
	} {
		if !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v, want ErrBroken", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func FuzzMessages(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.value.Body())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range messages() {
			got, err := m.parse(b)
			if err != nil {
				continue
			}
			again, err := m.parse(got.Body())
			if err != nil || !reflect.DeepEqual(got, again) {
				t.Errorf("%s: %+v came back as %+v, %v", m.name, got, again, err)
			}
		}
	})
}
