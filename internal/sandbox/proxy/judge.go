package proxy

import (
	"context"

	"gatehouse/internal/sandbox"
)

// Judge returns why a network does not allow a target, host:port, or nil if it does. It serves those who cannot send
// their traffic through a Proxy: the name may resolve to another address when they connect.
func Judge(ctx context.Context, n sandbox.Network, hostPort string) error {
	p, err := newPolicy(n)
	if err != nil {
		return err
	}
	t, err := parseAuthority(hostPort, httpsPort)
	if err != nil {
		return err
	}
	_, err = p.judge(ctx, t, ofThisHost())
	return err
}
