module gatehouse

go 1.26.8
