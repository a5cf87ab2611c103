package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"gatehouse/internal/files/atomicfile"
)

// Authority issues the certificates by which nodes know each other. Every node holds its key.
type Authority struct {
	dir string
	id  string // of the node, which is in its certificate
}

// How long certificates are valid.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	nodeLife      = 365 * 24 * time.Hour
	backdate      = time.Hour // clocks of nodes differ
)

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// authorityFor returns the certificates of a node, which it makes if they are missing: the first node makes the
// authority, another one gets its first certificate from its token. nil means that the cluster is on loopback
// alone, without certificates.
func authorityFor(o Options, id string) (*Authority, error) {
	a := &Authority{dir: filepath.Join(o.Dir, "tls"), id: id}
	known := a.complete() // otherwise an earlier start with a token did not get as far
	if !known && !o.TLS && o.TokenFile == "" && loopback(o.Listen) {
		for _, j := range o.Join {
			if !loopback(j) {
				return nil, fmt.Errorf(
					"joining at %s requires a token: run gatehouse cluster join-token on a node, and "+
						"name the file with --join-token-file",
					j,
				)
			}
		}
		return nil, nil
	}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, err
	}
	switch {
	case known:
	case o.TokenFile != "":
		if err := a.useToken(o.TokenFile, time.Now()); err != nil {
			return nil, err
		}
	case len(o.Join) > 0:
		return nil, errTokenNeeded(o.Join)
	default:
		if err := a.createAuthority(time.Now()); err != nil {
			return nil, err
		}
	}
	if !a.complete() {
		return a, nil // with the certificate of the token, until the key has come from another node
	}
	return a, second(a.issue(o, time.Now()))
}

// complete reports whether this node holds the authority's key.
func (a *Authority) complete() bool {
	_, err := os.Stat(a.path("ca.key"))
	return err == nil
}

// OpenAuthority returns the authority of the cluster whose node has this folder. It makes one if the node has not
// been started yet.
func OpenAuthority(dir string) (*Authority, error) {
	a := &Authority{dir: filepath.Join(dir, "tls")}
	if a.complete() {
		return a, nil
	}
	if _, x, err := readExternal(dir); err == nil && x != nil {
		return nil, errors.New("the engine of this cluster is an external one, so that a node joins without a token: start it " +
			"with the same cluster.name, cluster.nats.address and cluster.nats.credentials")
	}
	if _, err := os.Stat(filepath.Join(dir, "node.json")); err == nil {
		return nil, fmt.Errorf(
			"the cluster of this node has no certificates, because it is on loopback alone; start its " +
				"nodes at an address of the network, or with cluster.tls, to join from another machine",
		)
	}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, err
	}
	return a, a.createAuthority(time.Now())
}

// createAuthority makes the key and the certificate of a new cluster.
func (a *Authority) createAuthority(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	c := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "Gatehouse cluster"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return err
	}
	return a.writePair("ca", der, key)
}

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return n
}

func (a *Authority) writePair(name string, der []byte, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		atomicfile.Write(a.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})),
		atomicfile.Write(a.path(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
	)
}

// sign returns a certificate and its key.
func (a *Authority) sign(c *x509.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	parent, err := readCertificate(a.path("ca.pem"))
	if err != nil {
		return nil, nil, err
	}
	block, err := readPEM(a.path("ca.key"), "PRIVATE KEY")
	if err != nil {
		return nil, nil, err
	}
	by, err := x509.ParsePKCS8PrivateKey(block)
	if err != nil {
		return nil, nil, err
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	c.SerialNumber = serial()
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	c.KeyUsage = x509.KeyUsageDigitalSignature
	der, err = x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	return der, key, err
}

func readPEM(path, kind string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s holds no %s", path, kind)
	}
	return block.Bytes, nil
}

func readCertificate(path string) (*x509.Certificate, error) {
	der, err := readPEM(path, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// issue writes a new certificate of this node if the one it has is missing or past two thirds of its life, and reports
// whether it did.
func (a *Authority) issue(o Options, now time.Time) (replaced bool, err error) {
	if c, err := readCertificate(a.path("node.pem")); err == nil && c.Subject.CommonName == "node" && c.Subject.SerialNumber == a.id &&
		now.Before(c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore)*2/3)) && covers(c, o) {
		return false, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	c := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "node", SerialNumber: a.id}, // the engine refuses removed nodes by their id
		NotBefore: now.Add(-backdate),
		NotAfter:  now.Add(nodeLife),
		DNSNames:  []string{"localhost"},
	}
	if host, err := os.Hostname(); err == nil {
		c.DNSNames = append(c.DNSNames, host)
	}
	addresses, _ := net.InterfaceAddrs()
	for _, addr := range addresses {
		if ip, ok := addr.(*net.IPNet); ok {
			c.IPAddresses = append(c.IPAddresses, ip.IP)
		}
	}
	for _, host := range named(o) {
		if ip := net.ParseIP(host); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else if host != "" {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	der, key, err := a.sign(c)
	if err != nil {
		return false, err
	}
	return true, a.writePair("node", der, key)
}

// named returns the names by which other nodes reach this one.
func named(o Options) (hosts []string) {
	for _, at := range []string{o.Listen, o.Advertise} {
		if host, _, err := net.SplitHostPort(at); err == nil {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

func covers(c *x509.Certificate, o Options) bool {
	for _, host := range named(o) {
		if host != "" && c.VerifyHostname(host) != nil {
			return false
		}
	}
	return true
}

// JoinToken returns a file with which a node can join within the given time: the authority's certificate, and a
// certificate that expires. The engine of every node refuses it afterwards.
func (a *Authority) JoinToken(valid time.Duration) ([]byte, error) {
	now := time.Now()
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: "join"}, NotBefore: now.Add(-backdate), NotAfter: now.Add(valid),
	}
	der, key, err := a.sign(c)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(a.path("ca.pem"))
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{
		ca,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}, nil), nil
}

// useToken writes the certificates of a token to the folder.
func (a *Authority) useToken(file string, now time.Time) error {
	blocks, err := readToken(file, now)
	if err != nil {
		return err
	}
	return errors.Join(
		atomicfile.Write(a.path("node.key"), pem.EncodeToMemory(blocks[2])),
		atomicfile.Write(a.path("node.pem"), pem.EncodeToMemory(blocks[1])),
		atomicfile.Write(a.path("ca.pem"), pem.EncodeToMemory(blocks[0])),
	)
}

// CheckJoin returns why a node with these options could not join for the first time; nil says nothing about the other
// nodes.
func CheckJoin(o Options, now time.Time) error {
	if err := o.checkOptions(); err != nil {
		return err
	}
	if len(o.Join) == 0 {
		return errors.New("expected HOST:PORT, the cluster address of a node")
	}
	if o.TokenFile != "" {
		_, err := readToken(o.TokenFile, now)
		return err
	}
	here := !o.TLS && loopback(o.Listen)
	for _, j := range o.Join {
		here = here && loopback(j)
	}
	if !here {
		return errTokenNeeded(o.Join)
	}
	return nil
}

func errTokenNeeded(join []string) error {
	return fmt.Errorf("joining %v requires a token: run gatehouse cluster join-token on a node, and name the file with "+
		"--join-token-file", join)
}

// readToken returns the certificate of the authority, that of the token, and the key of the latter.
func readToken(file string, now time.Time) ([]*pem.Block, error) {
	raw, err := atomicfile.Read(file, 64<<10)
	if err != nil {
		return nil, fmt.Errorf("read the join token: %w", err)
	}
	var blocks []*pem.Block
	for rest := raw; ; {
		block, more := pem.Decode(rest)
		if block == nil {
			break
		}
		blocks, rest = append(blocks, block), more
	}
	if len(blocks) != 3 || blocks[0].Type != "CERTIFICATE" || blocks[1].Type != "CERTIFICATE" ||
		blocks[2].Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s is not a join token; gatehouse cluster join-token makes one", file)
	}
	c, err := x509.ParseCertificate(blocks[1].Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if now.After(c.NotAfter) {
		return nil, fmt.Errorf("the join token %s expired at %s; run gatehouse cluster join-token again", file,
			c.NotAfter.Format(time.RFC3339))
	}
	return blocks, nil
}
