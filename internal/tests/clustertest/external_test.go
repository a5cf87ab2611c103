package clustertest

import (
	"crypto/ed25519"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// natsKey is a key of NATS: an operator, an account or a user.
type natsKey struct {
	secret ed25519.PrivateKey
	kind   byte
}

// The kinds of keys, as the first bits of their names.
const (
	natsOperator = 14 << 3
	natsAccount  = 0
	natsUser     = 20 << 3
	natsSeed     = 18 << 3
)

func newNatsKey(t *testing.T, kind byte) natsKey {
	t.Helper()
	_, secret, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return natsKey{secret, kind}
}

// natsName encodes bytes as NATS writes keys: with a checksum (CRC-16, XMODEM).
func natsName(raw []byte) string {
	var crc uint16
	for _, c := range raw {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(binary.LittleEndian.AppendUint16(raw, crc))
}

func (k natsKey) name() string {
	return natsName(append([]byte{k.kind}, k.secret.Public().(ed25519.PublicKey)...))
}

func (k natsKey) seed() string {
	return natsName(append([]byte{natsSeed | k.kind>>5, k.kind & 31 << 3}, k.secret.Seed()...))
}

// sign returns claims about another key, signed by this one.
func (k natsKey) sign(t *testing.T, about natsKey, claims map[string]any) string {
	t.Helper()
	claims["version"] = 2
	raw, err := json.Marshal(map[string]any{
		"jti": "test", "iat": time.Now().Unix(), "iss": k.name(), "sub": about.name(), "name": "test", "nats": claims,
	})
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"typ":"JWT","alg":"ed25519-nkey"}`)) + "." +
		base64.RawURLEncoding.EncodeToString(raw)
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(k.secret, []byte(text)))
}

// externalServer starts a NATS server with JetStream that asks for credentials, as an administrator runs it, and
// returns its address and the file of the credentials.
func externalServer(t *testing.T) (address, credentials string) {
	t.Helper()
	operator, account, system, user := newNatsKey(t, natsOperator), newNatsKey(t, natsAccount),
		newNatsKey(t, natsAccount), newNatsKey(t, natsUser)
	limits := map[string]any{"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
		"conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
	port := freePort(t)
	dir := t.TempDir()
	raw, err := json.Marshal(map[string]any{
		"server_name": "outside", "listen": "127.0.0.1:" + port, "max_payload": 8 << 20,
		"operator": operator.sign(t, operator, map[string]any{"type": "operator"}), "system_account": system.name(),
		"resolver": "MEMORY",
		"resolver_preload": map[string]string{
			account.name(): operator.sign(t, account, map[string]any{"type": "account", "limits": limits}),
			system.name():  operator.sign(t, system, map[string]any{"type": "account"}),
		},
		"jetstream": map[string]any{"store_dir": dir, "sync_interval": "always"},
	})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "server.json")
	credentials = filepath.Join(dir, "user.creds")
	jwt := account.sign(t, user, map[string]any{"type": "user", "subs": -1, "data": -1, "payload": -1})
	for path, text := range map[string]string{
		config: string(raw),
		credentials: fmt.Sprintf("-----BEGIN NATS USER JWT-----\n%s\n------END NATS USER JWT------\n\n"+
			"-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n", jwt, user.seed()),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	output := &lockedBuffer{}
	cmd := exec.Command(filepath.Join(engine(t), "gatehouse-nats"), config)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the external server says:\n%s", output)
		}
	})
	return "nats://127.0.0.1:" + port, credentials
}

// startExternal starts three nodes with an external engine.
func startExternal(t *testing.T) []*node {
	t.Helper()
	address, credentials := externalServer(t)
	return startNodesIn(t, []string{
		"GATEHOUSE_CLUSTER_NATS_ADDRESS=" + address, "GATEHOUSE_CLUSTER_NATS_CREDENTIALS=" + credentials,
		"GATEHOUSE_CLUSTER_NATS_REPLICAS=1",
	})
}

// TestAnExternalEngine runs all commands of a cluster whose nodes use a NATS server that none of them starts.
func TestAnExternalEngine(t *testing.T) {
	t.Parallel()
	nodes := startExternal(t)
	for i, n := range nodes {
		for _, name := range children(t, n.cmd.Process.Pid) {
			if strings.Contains(name, "nats") {
				t.Errorf("node %d has started an engine: %s", i, name)
			}
		}
	}
	alive := func(want int) {
		t.Helper()
		for i, n := range nodes[:2] {
			if got := n.command(t, "cluster", "status"); strings.Count(got, "alive") != want {
				t.Errorf("node %d lists other than %d nodes:\n%s", i, want, got)
			}
		}
	}
	alive(3)
	if out, err := nodes[0].run(t, "cluster", "join-token").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "cluster.nats.address") {
		t.Errorf("a token of a cluster that needs none: %v\n%s", err, out)
	}
	nodes[0].command(t, "user", "add", "ada", "--no-password")
	token := strings.TrimSpace(nodes[1].command(t, "token", "create", "--user", "ada", "--name", "first"))
	eventually(t, "another node accepts the token", func() bool { return accepts(t, nodes[2], token) })

	fourth := addNode(t, nodes, filepath.Join(t.TempDir(), "fourth"))
	first := fourth.id(t)
	alive(4)
	if out := fourth.command(t, "cluster", "drain", "--wait", "1m"); !strings.Contains(out, "Stop this node now") {
		t.Errorf("drain: %s", out)
	}
	if out := nodes[0].command(t, "cluster", "status"); !strings.Contains(out, "draining") {
		t.Errorf("a node that drains is not listed as such:\n%s", out)
	}
	if out, err := fourth.run(t, "cluster", "leave").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "runs: stop it first") {
		t.Errorf("a node that runs leaves: %v\n%s", err, out)
	}
	fourth.stop()
	fourth.command(t, "cluster", "leave")
	if got := nodes[0].command(t, "cluster", "status"); strings.Contains(got, first) {
		t.Errorf("after a node has left:\n%s", got)
	}
	fourth = addNode(t, nodes, filepath.Join(t.TempDir(), "fourth")) // what has left has users of its own now
	second := fourth.id(t)
	fourth.cmd.Process.Kill()
	fourth.cmd.Wait()
	nodes[1].command(t, "cluster", "remove", second)
	if got := nodes[0].command(t, "cluster", "status"); strings.Contains(got, second) {
		t.Errorf("after a node was removed:\n%s", got)
	}

	const password = "a password of a backup"
	file := filepath.Join(t.TempDir(), "work.cluster")
	if out, ok := nodes[2].ask(t, password, "cluster", "backup", file, "--ask"); !ok {
		t.Fatal(out)
	}
	for _, n := range nodes {
		n.stop()
	}
	fresh := startExternal(t)
	if out, ok := fresh[1].ask(t, password, "cluster", "restore", file, "--ask"); !ok {
		t.Fatal(out)
	}
	eventually(t, "a node of the fresh cluster has the users", func() bool { return accepts(t, fresh[0], token) })
}
