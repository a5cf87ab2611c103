// Package cluster makes several hosts one: it starts or reaches NATS, knows which nodes are alive, and offers
// leases, records that are changed by compare-and-set, requests and streams between nodes.
//
// Elections, replication and gossip are NATS's. Every decision of this package is a compare-and-set in a bucket;
// what a node merely believes, such as which nodes are alive, decides nothing that two nodes could decide
// differently. docs/cluster.md describes the failures that it holds against.
//
// It knows bytes and names, and no package but those that build a host imports it. Begin with Start in cluster.go;
// peers.go says who is alive, bucket.go and lease.go decide, message.go carries.
package cluster
