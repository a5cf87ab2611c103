package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/cluster"
	"gatehouse/internal/mcp/seal"
)

// usedLife is how long it is known that a step of a login was used: longer than what is sealed for it is valid.
const usedLife = time.Hour

// loginNodes implements identity.Nodes.
type loginNodes struct {
	*seal.Ring
	used *cluster.Bucket
}

// loginNodes returns what logins need that go from one node to another; nil without a cluster.
func (a *App) loginNodes(ctx context.Context) (identity.Nodes, error) {
	if a.nodes == nil {
		return nil, nil
	}
	used, err := a.nodes.Bucket(ctx, "used", cluster.BucketOptions{TTL: usedLife})
	if err != nil {
		return nil, fmt.Errorf("logins of the cluster: %w", err)
	}
	return loginNodes{a.ring, used}, nil
}

// Once implements identity.Nodes.
func (n loginNodes) Once(ctx context.Context, key string) (bool, error) {
	_, err := n.used.Create(ctx, key, []byte("{}"))
	if errors.Is(err, cluster.ErrConflict) {
		return false, nil
	}
	return err == nil, err
}
