// Package clustertest tests several hosts as one: each node is a process of its own, with its own engine and folders.
package clustertest
